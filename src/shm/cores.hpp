// SPDX-License-Identifier: MIT
// The cores that this process may run on.
#pragma once

#include <functional>

namespace sheaf::shm {

// How many there are.
int core_count();

// Moves the calling thread to one of them that is not `taken`, if there is one, and leaves it free to go on from there.
void move_to_core(const std::function<bool(int)>& taken);

}  // namespace sheaf::shm
