// SPDX-License-Identifier: MIT
#include "c10d/watchdog.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "c10d/registry.hpp"
#include "core/chore.hpp"

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
constexpr auto idle_tick = 1s;  // to look after what was left behind

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
      next_look_ = clock::now() + (quiet < idle_ticks ? std::chrono::milliseconds(tick) : idle_tick);
      for (const auto& [work, until] : watches_) next_look_ = std::min(next_look_, until);
      changed_.wait_until(lock, next_look_);
      if (quiet >= idle_ticks) {
        lock.unlock();
        if (const chore now; now) forget_destroyed_groups();
        lock.lock();
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

std::atomic<watchdog*> watching{nullptr};

// Never destroyed: its thread runs to the end of the process. A child of fork has no such thread, and starts its own.
watchdog& the_watchdog() {
  if (auto* found = watching.load()) return *found;
  static const int forked = pthread_atfork(nullptr, nullptr, [] { watching = nullptr; });
  static_cast<void>(forked);
  static std::mutex starting;
  const std::lock_guard lock(starting);
  if (!watching.load()) watching = new watchdog;
  return *watching.load();
}

}  // namespace

void look_after_groups() { the_watchdog(); }

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
