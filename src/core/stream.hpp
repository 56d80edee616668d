// SPDX-License-Identifier: MIT
// memcpy that does not read the lines it will overwrite, where a copy is too large for any cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sheaf {

void stream_or_copy(std::byte* to, const std::byte* from, std::int64_t bytes);

}  // namespace sheaf
