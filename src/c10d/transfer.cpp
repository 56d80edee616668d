// SPDX-License-Identifier: MIT
#include "c10d/transfer.hpp"

#include <unistd.h>

#include <list>
#include <mutex>
#include <sheaf/error.hpp>
#include <thread>

#include "c10d/watchdog.hpp"
#include "core/chore.hpp"
#include "core/interrupt.hpp"
#include "core/text.hpp"

namespace sheaf::c10d_engine {
namespace {

using clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// Backends other than Gloo say truly whether a work is done.
bool poll(c10d::Work& work, clock::time_point until) {
  for (auto pause = 20us; !work.isCompleted(); pause = std::min<std::chrono::microseconds>(2 * pause, 1ms)) {
    if (clock::now() >= until) return false;
    std::this_thread::sleep_for(pause);
  }
  return work.wait();
}

class orphanage {
 public:
  void add(std::unique_ptr<transfer> abandoned) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(abandoned));
    if (running_) return;
    running_ = true;
    std::thread([this] { run(); }).detach();
  }

 private:
  static bool is_over(transfer& message) {
    try {
      if (const chore now; !now || message.is_orphan()) return true;
      return message.wait(clock::now() + wait_slice);
    } catch (const std::exception&) {
      return true;  // its call has already failed and said so
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      const auto message = waiting_.begin();
      lock.unlock();
      const bool over = is_over(**message);
      if (over) {
        const chore now;
        if (!now) return;
        message->reset();
      }
      lock.lock();
      if (over) {
        waiting_.erase(message);
      } else {
        waiting_.splice(waiting_.end(), waiting_, message);
      }
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::list<std::unique_ptr<transfer>> waiting_;
  bool running_ = false;
};

}  // namespace

bool transfer::wait(clock::time_point until) {
  try {
    return is_gloo_ ? wait_in_slices(*work_, until) : poll(*work_, until);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

void adopt(std::unique_ptr<transfer> abandoned) {
  // Never destroyed: its thread may outlive main. What a parent left behind is nothing to a child of fork.
  static auto* home = new orphanage;
  static auto owner = getpid();
  if (owner != getpid()) {
    owner = getpid();
    home = new orphanage;
  }
  home->add(std::move(abandoned));
}

}  // namespace sheaf::c10d_engine
