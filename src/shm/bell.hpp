// SPDX-License-Identifier: MIT
// Waiting for another rank: a few tries, then giving way, then sleep. Good with more ranks than cores, and no work in a
// long wait.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "shm/board.hpp"

namespace sheaf::shm {

using clock = std::chrono::steady_clock;

// Wakes whoever sleeps by this rank's bell.
void ring(board& own);

// Whether sleepers can have fences for this process's threads from now on: the system's barrier reaches them.
bool allow_fences();
// Has every thread of every process that allowed it pass a fence; false where the system knows of none.
bool fence_others();

// Publishes one of the own words. Its store and the look for sleepers are in one order with what a sleeper does: by a
// fence here, for which every call would wait, or by one that the sleeper has for both.
inline void publish(board& own, std::atomic<std::uint64_t>& word, std::uint64_t value) {
  if (own.unfenced.load(std::memory_order_relaxed)) {
    word.store(value, std::memory_order_release);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    word.exchange(value);
  }
  if (own.sleepers.load() != 0) ring(own);
}

// Sleeps until the bell is rung, unless it was since `heard`, or until then.
void sleep_by(board& of, std::uint32_t heard, clock::time_point until);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

// A few tries, the first of them at once.
template <class Ready>
bool is_there_at_once(Ready&& ready, int tries) {
  for (int i = 0; i < tries; ++i) {
    if (i > 0) relax();
    if (ready()) return true;
  }
  return false;
}

// Gives way to others for a millisecond at most.
template <class Ready>
bool is_soon(Ready&& ready) {
  const auto enough = clock::now() + std::chrono::milliseconds(1);
  do {
    ::sched_yield();
    if (ready()) return true;
  } while (clock::now() < enough);
  return false;
}

// Whether ready(), which looks at the words of `of`, says so by then.
template <class Ready>
bool sleep_until(board& of, Ready&& ready, clock::time_point until) {
  constexpr auto unheard = std::chrono::milliseconds(1);
  for (;;) {
    // Announced before the last look: whoever publishes after that look sees the sleeper and rings.
    of.sleepers.fetch_add(1);
    const bool will_ring = !of.unfenced.load(std::memory_order_relaxed) || fence_others();
    const auto heard = of.bell.load();
    const bool now = ready();
    if (!now) sleep_by(of, heard, will_ring ? until : std::min(until, clock::now() + unheard));
    of.sleepers.fetch_sub(1);
    if (now || ready()) return true;
    if (clock::now() >= until) return false;
  }
}

}  // namespace sheaf::shm
