// SPDX-License-Identifier: MIT
// Gloo waits cannot be cut into slices: a wait that times out closes the connection for good. But a wait can be
// aborted from another thread and taken up again. This is that thread, one per process.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace sheaf::c10d_engine {

// Waits for `work` until it is done (true) or about `until` (false). Throws what the work throws.
bool wait_in_slices(c10d::Work& work, std::chrono::steady_clock::time_point until);

// Lets that thread look for groups that were destroyed, and let go of what Sheaf holds of them.
void look_after_groups();

}  // namespace sheaf::c10d_engine
