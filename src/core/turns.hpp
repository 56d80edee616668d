// SPDX-License-Identifier: MIT
// Calls of one group take turns in the order of their numbers, whichever thread makes them: a call sees the other ranks
// in one state, and one that was started and runs later keeps its place.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

#include "core/engine.hpp"

namespace sheaf {

class turns {
 public:
  // `over(n)`: every call up to n is over. Called in order, by one thread at a time.
  explicit turns(std::function<void(std::uint64_t)> over = {}) : over_(std::move(over)) {}

  void number(call& now);
  // Waits until all calls before this one are over. Its time counts from there where the call before it went well: a
  // queue that moves does not eat up the time of those at its end. Throws what ends a wait early; then this call is
  // over, too.
  void take(call& now);
  void end(const call& now) noexcept;
  // So many calls are over that nobody makes here.
  void skip(std::uint64_t calls) noexcept;

 private:
  void start(call& now) const;
  void close(std::uint64_t number);

  const std::function<void(std::uint64_t)> over_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::uint64_t> begun_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;  // written under the mutex, after what a call that follows looks at
  std::set<std::uint64_t> skipped_;       // over before their turn
  bool went_well_ = false;
  std::chrono::steady_clock::time_point last_end_;
};

}  // namespace sheaf
