// SPDX-License-Identifier: MIT
// The cores that this process may run on, and those that ranks run on.
#pragma once

#include <functional>
#include <vector>

namespace sheaf::shm {

// How many there are.
int core_count();

// Moves the calling thread to one of them that is not `taken`, if there is one, and leaves it free to go on from there.
void move_to_core(const std::function<bool(int)>& taken);

// Which core each rank was last seen on.
class seats {
 public:
  seats(int ranks, int cores) : enough_(cores >= ranks), taken_(ranks, unknown) {}

  int of(int rank) const { return taken_[rank]; }
  void take(int rank, int core) {
    if (taken_[rank] != core) change(rank, core);
  }
  // Whether each rank has a core: there are as many, or a launcher bound each to another one.
  bool are_enough() const { return enough_ || apart_; }

 private:
  static constexpr int unknown = -1;
  void change(int rank, int core);

  const bool enough_;
  bool apart_ = false;
  std::vector<int> taken_;
};

}  // namespace sheaf::shm
