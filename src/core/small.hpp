// SPDX-License-Identifier: MIT
// Small memory, which comes and goes with every call: aligned memory from malloc takes longer than all the rest of a
// small result, so it is what the thread dropped before. At most some hundred KiB are kept so.
#pragma once

#include <cstddef>

namespace sheaf::small {

inline constexpr std::size_t most_bytes = 4096;

// Uninitialised, aligned to a cache line.
void* take(std::size_t bytes);
// On any thread, and also while the process ends.
void give_back(void* data) noexcept;

}  // namespace sheaf::small
