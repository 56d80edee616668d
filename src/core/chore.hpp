// SPDX-License-Identifier: MIT
// What Sheaf's own threads do beside the user's calls, and how they end before Python and the process do.
#pragma once

#include <mutex>

namespace sheaf {

// To look up a group may end in destroying it, and to drop a tensor may need Python: both only in a chore, and there is
// none once the process ends. One at a time. False when the process ends: then all must stay as it is.
class chore {
 public:
  chore();
  explicit operator bool() const { return lock_.owns_lock(); }

 private:
  std::unique_lock<std::timed_mutex> lock_;
};

// What may take long: a call that was started, and is carried on by a thread of Sheaf's. The process's end waits for
// it for a moment, in which it should see is_ending() and stop. False when the process ends already.
class errand {
 public:
  errand();
  ~errand();
  errand(const errand&) = delete;
  errand& operator=(const errand&) = delete;
  explicit operator bool() const { return under_way_; }

 private:
  bool under_way_;
};

// A wait amid an errand that cannot see is_ending(): the process's end waits for it for a shorter moment, after which
// it never returns. Anywhere else it changes nothing.
class blind_wait {
 public:
  blind_wait();
  ~blind_wait();
  blind_wait(const blind_wait&) = delete;
  blind_wait& operator=(const blind_wait&) = delete;

 private:
  bool of_errand_;
};

bool is_ending();

// Lets the end of Python, and of the process, wait for what is under way. To be called without any lock, as it takes
// Python's, and when there is a group: then what torch keeps of groups outlives the chores.
void end_chores_at_exit();

}  // namespace sheaf
