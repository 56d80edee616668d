// SPDX-License-Identifier: MIT
// What carries a group's started calls on while the user's threads do something else: one thread, there while calls
// are, that runs them in the order of their numbers.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace sheaf {

class progress : public std::enable_shared_from_this<progress> {
 public:
  using job = std::function<void()>;
  // As many calls may be in flight: started, and neither waited for nor dropped.
  static constexpr int most = 64;

  // One call in flight; null when there are too many.
  using place = std::shared_ptr<const void>;
  place take_place();

  // Runs `made()` later, after all that were queued before. `made` is called here and now, by one thread at a time, and
  // gives the call its number. Jobs do not throw. They are dropped in a chore, or never when the process ends.
  void queue(const std::function<job()>& made);
  // Whether something is queued or runs.
  bool is_busy() const;
  pid_t owner() const { return owner_; }

 private:
  // There is a thread, and it stays at least as long as what is returned.
  std::shared_ptr<void> hold_thread();
  void carry();

  const pid_t owner_ = getpid();
  std::mutex order_;          // held while a call gets its number and is queued, so that both have one order
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable added_;
  std::deque<job> jobs_;
  bool has_thread_ = false;
  int held_ = 0;
  bool runs_ = false;
  int places_ = 0;
};

}  // namespace sheaf
