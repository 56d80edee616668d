// SPDX-License-Identifier: MIT
// How far apart the ranks' caches are. Cores of one cluster share a cache, and find there what another of them wrote.
// Lines in the cache of another cluster or socket come later than from memory: what such ranks read is better written
// past the caches. No table of the system tells that of virtual machines, and it changes as the host moves them, so it
// is measured, by a few lines in every large call.
#pragma once

#include <chrono>
#include <vector>

#include "core/stream.hpp"
#include "shm/board.hpp"

namespace sheaf::shm {

class distance {
 public:
  explicit distance(int world) : peers_(world) {}

  // Writes the own lines; to be told to others by the next word that is published.
  void leave(marks& own);
  // Reads those of another rank.
  void measure(int peer, const marks& of);
  // What reading such marks, the `number`th of that rank, told.
  void learn(int peer, std::uint64_t number, std::chrono::nanoseconds a_line);
  // Of what this rank writes: far as soon as one of them is.
  readers others() const { return far_ > 0 ? readers::far : readers::near; }

 private:
  struct peer_at {
    std::uint64_t seen = 0;
    bool is_far = false;
  };
  std::vector<peer_at> peers_;
  int far_ = 0;  // of them
  std::uint64_t left_ = 0;
};

}  // namespace sheaf::shm
