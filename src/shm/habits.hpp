// SPDX-License-Identifier: MIT
// Whether what ranks write for each other is left in the caches or goes past them. Cores of one cluster share a cache
// and find there what another of them wrote; from another cluster's cache it may come later than from memory. No table
// of the system tells that of virtual machines, and it changes as a host moves them. So data goes both ways, and is
// timed: mostly the one that was faster, and the other now and then, less often the longer nothing changes.
#pragma once

#include <array>
#include <cstdint>

#include "core/header.hpp"
#include "core/stream.hpp"

namespace sheaf::shm {

// What is moved: sums, of elements that take as long each; gathers; and what rides along with headers.
enum class movement { sum, narrow_sum, gather, frame };
movement movement_of(const header& head);

// Movements of one kind and of about as many bytes behave alike. From 0 to 63.
int size_class(movement what, std::int64_t bytes);

class habits {
 public:
  // One bit a class, set where the way is past the caches: the one to try next, and the one that was faster.
  struct ways {
    std::uint64_t next = 0;
    std::uint64_t best = 0;
  };
  const ways& now() const { return ways_; }
  // What a movement of that class took by that way, for each byte, in any unit.
  void learn(int of, readers way, double cost);
  // One that nobody timed: a trial waits until one is.
  void pass(int of);

 private:
  struct habit {
    std::array<double, 2> costs{};  // by way: what it took of late; 0 where unknown
    readers best = readers::near;
    int pause = 0;  // calls between two trials of the other way
    int left = 0;   // of them
  };
  static readers next(habit& of, readers way, double cost);

  std::array<habit, 64> habits_;
  ways ways_;
};

// Sums and gathers of fewer bytes tell too little.
inline constexpr std::int64_t worth_learning = std::int64_t{256} << 10;

inline readers way_of(std::uint64_t past_caches, int of) {
  return past_caches >> of & 1 ? readers::far : readers::near;
}

}  // namespace sheaf::shm
