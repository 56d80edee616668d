// SPDX-License-Identifier: MIT
#include "core/turns.hpp"

#include <algorithm>
#include <sheaf/error.hpp>

#include "core/chore.hpp"
#include "core/interrupt.hpp"

namespace sheaf {

void turns::number(call& now) { now.head.sequence = begun_.fetch_add(1) + 1; }

void turns::take(call& now) {
  if (ended_.load(std::memory_order_acquire) + 1 == now.head.sequence) return start(now);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, wait_slice, [&] { return ended_ + 1 == now.head.sequence; })) {
    lock.unlock();  // the question may take its time, and Python's lock
    try {
      throw_if_interrupted();
      if (is_ending()) throw interrupted("the process ends, and calls that were started before are not done");
    } catch (...) {
      lock.lock();
      close(now.head.sequence);
      throw;
    }
    lock.lock();
  }
  start(now);
}

void turns::start(call& now) const {
  if (went_well_) now.started = std::max(now.started, last_end_);
}

void turns::end(const call& now) noexcept {
  const std::lock_guard lock(mutex_);
  went_well_ = !now.failed;
  if (begun_.load(std::memory_order_relaxed) != now.head.sequence) last_end_ = std::chrono::steady_clock::now();
  close(now.head.sequence);
}

void turns::skip(std::uint64_t calls) noexcept {
  const std::lock_guard lock(mutex_);
  for (; calls > 0; --calls) close(begun_.fetch_add(1) + 1);
}

void turns::close(std::uint64_t number) {
  if (number != ended_ + 1) {
    skipped_.insert(number);
    return;
  }
  while (!skipped_.empty() && skipped_.erase(number + 1) > 0) ++number;
  if (over_) over_(number);
  ended_.store(number, std::memory_order_release);
  changed_.notify_all();
}

}  // namespace sheaf
