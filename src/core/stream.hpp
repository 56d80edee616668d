// SPDX-License-Identifier: MIT
// memcpy that goes past the caches, where what it writes is better not left in one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sheaf {

// Who reads next what is written: cores that share a cache with this one, or such that find it sooner in memory.
enum class readers { near, far };

bool is_streamed(std::int64_t bytes, readers next);
// Only where it is_streamed(). Others may not be told of what was streamed before end_streams().
void stream(std::byte* to, const std::byte* from, std::int64_t bytes);
void end_streams();
// All of that, where it is worth it.
void stream_or_copy(std::byte* to, const std::byte* from, std::int64_t bytes, readers next);

}  // namespace sheaf
