// SPDX-License-Identifier: MIT
#include "c10d/watchdog.hpp"

#include <algorithm>
#include <condition_variable>
#include <list>
#include <thread>

namespace sheaf::c10d_engine {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Far beyond any slice, so that Gloo itself never times out.
constexpr auto never = std::chrono::milliseconds(24h * 365);
// Waking a sleeping thread costs more than a short wait: the thread looks around by itself while there is traffic, and
// is woken only for an end that comes before it would look.
constexpr auto tick = 100ms;
constexpr int idle_ticks = 10;

class watchdog {
 public:
  struct watch {
    c10d::Work* work;
    clock::time_point until;
  };
  using handle = std::list<watch>::iterator;

  watchdog() {
    std::thread([this] { run(); }).detach();
  }

  handle add(c10d::Work& work, clock::time_point until) {
    const std::lock_guard lock(mutex_);
    watches_.push_front({&work, until});
    if (until < next_look_) changed_.notify_one();
    return watches_.begin();
  }

  void remove(handle watched) {
    const std::lock_guard lock(mutex_);
    watches_.erase(watched);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (int quiet = 0;; quiet = watches_.empty() ? quiet + 1 : 0) {
      next_look_ = quiet < idle_ticks ? clock::now() + tick : clock::time_point::max();
      for (const auto& [work, until] : watches_) next_look_ = std::min(next_look_, until);
      if (next_look_ == clock::time_point::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, next_look_);
      }
      const auto now = clock::now();
      for (auto& [work, until] : watches_) {
        if (now < until) continue;
        work->abort();
        until = now + tick;  // once more, should the wait have begun only now
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<watch> watches_;
  clock::time_point next_look_ = clock::time_point::max();
};

// Never destroyed: its thread runs to the end of the process.
watchdog& the_watchdog() {
  static auto* watching = new watchdog;
  return *watching;
}

}  // namespace

bool wait_in_slices(c10d::Work& work, clock::time_point until) {
  const auto watched = the_watchdog().add(work, until);
  try {
    const bool done = work.wait(never);
    the_watchdog().remove(watched);
    return done;
  } catch (...) {
    the_watchdog().remove(watched);
    throw;
  }
}

}  // namespace sheaf::c10d_engine
