// SPDX-License-Identifier: MIT
// Whether what ranks write for each other is left in the caches or goes past them. Cores of one cluster share a cache
// and find there what another of them wrote; from another cluster's cache it may come later than from memory. No table
// of the system tells that of virtual machines, and it changes as a host moves them. So both ways are used, and timed:
// mostly the one that was faster, and the other now and then, less often the longer nothing changes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/stream.hpp"

namespace sheaf::shm {

class habits {
 public:
  static constexpr int classes = 64;
  // Calls of about as many bytes behave alike.
  static int class_of(std::int64_t bytes) { return std::bit_width(static_cast<std::uint64_t>(bytes)) % classes; }
  static readers way_of(std::uint64_t past_caches, std::int64_t bytes) {
    return past_caches >> class_of(bytes) & 1 ? readers::far : readers::near;
  }

  // The way for the next calls, one bit a class: set where it is past the caches.
  std::uint64_t past_caches() const { return past_caches_; }
  // What a call of so many bytes took by that way, in any unit.
  void learn(std::int64_t bytes, readers way, double cost);

 private:
  struct habit {
    std::array<double, 2> costs{};  // by way: what it took of late; 0 where unknown
    readers best = readers::near;
    int pause = 0;  // calls between two trials of the other way
    int left = 0;   // of them
  };
  readers next(habit& of, readers way, double cost);

  std::array<habit, classes> habits_;
  std::uint64_t past_caches_ = 0;
};

}  // namespace sheaf::shm
