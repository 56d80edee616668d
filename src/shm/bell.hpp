// SPDX-License-Identifier: MIT
// Waiting for another rank: a few tries, then giving way, then sleep. Good with more ranks than cores, and no work in a
// long wait.
#pragma once

#include <sched.h>

#include <chrono>

#include "shm/board.hpp"

namespace sheaf::shm {

using clock = std::chrono::steady_clock;

// Wakes whoever sleeps by this rank's bell.
void ring(board& own);

// Publishes one of the own words. Its store and the look for sleepers are in one order with what a sleeper does.
inline void publish(board& own, std::atomic<std::uint64_t> board::* word, std::uint64_t value) {
  (own.*word).exchange(value);
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

// A few tries. More cost whole time slices as soon as ranks outnumber cores.
template <class Ready>
bool is_there_at_once(Ready&& ready) {
  constexpr int tries = 20;
  for (int i = 0; i < tries; ++i) {
    if (ready()) return true;
    relax();
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
  for (;;) {
    // Announced before the last look: whoever publishes after that look sees the sleeper and rings.
    of.sleepers.fetch_add(1);
    const auto heard = of.bell.load();
    const bool now = ready();
    if (!now) sleep_by(of, heard, until);
    of.sleepers.fetch_sub(1);
    if (now || ready()) return true;
    if (clock::now() >= until) return false;
  }
}

}  // namespace sheaf::shm
