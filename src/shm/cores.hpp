// SPDX-License-Identifier: MIT
// The cores that this process may run on, and those that ranks run on.
#pragma once

#include <optional>
#include <utility>
#include <vector>

namespace sheaf::shm {

std::vector<int> own_cores();
int core_count();

// Moves the calling thread to one of them, and leaves it free to go on from there.
void move_to(int core);

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
  // Once after each change.
  bool have_changed() { return std::exchange(changed_, false); }
  // A core of these that no other rank is on.
  std::optional<int> free_one(int rank, const std::vector<int>& cores) const;
  // Where the rank goes, if anywhere, for all to lie evenly on these: the highest ranks of the most crowded cores go to
  // the emptiest ones, by every rank's reckoning.
  std::optional<int> even_one(int rank, const std::vector<int>& cores) const;

 private:
  static constexpr int unknown = -1;
  void change(int rank, int core);

  const bool enough_;
  bool apart_ = false;
  bool changed_ = false;
  std::vector<int> taken_;
};

}  // namespace sheaf::shm
