// SPDX-License-Identifier: MIT
// Reading what lies in another rank's own memory. The system lets processes of one user do that unless it was told not
// to (Yama, seccomp); ranks that are threads of one process always can.
#pragma once

#include <sheaf/layout.hpp>

#include "shm/board.hpp"

namespace sheaf::shm {

// Whether this process may read the memory of that rank. It tries, on the rank's board.
bool can_reach(const board& of);

// Bytes [first, first + count) of block `block`, from the gathered tensor that the rank shows, into `packed`. Returns
// errno, 0 where all is well.
int reach(const board& of, const layout& at, int block, std::int64_t first, std::int64_t count, std::byte* packed);

}  // namespace sheaf::shm
