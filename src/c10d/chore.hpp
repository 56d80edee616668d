// SPDX-License-Identifier: MIT
// What Sheaf's own threads do beside the user's calls. To look up a group may end in destroying it, and to drop a
// tensor may need Python: both only in a chore, and there is none once the process ends.
#pragma once

#include <mutex>

namespace sheaf::c10d_engine {

// One at a time. False when the process ends: then all must stay as it is.
class chore {
 public:
  chore();
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::timed_mutex> lock_;
};

// Lets the end of Python, and of the process, wait for the chore under way. To be called without any lock, as it takes
// Python's, and when there is a group: then what torch keeps of groups outlives the chores.
void end_chores_at_exit();

}  // namespace sheaf::c10d_engine
