// SPDX-License-Identifier: MIT
#include "shm/habits.hpp"

#include <algorithm>
#include <bit>

namespace sheaf::shm {
namespace {

constexpr int shortest_pause = 2, longest_pause = 32;
constexpr double clearly = 0.95;  // less than the best one by more than chance
constexpr double changed = 1.4;   // times as long as of late

readers other(readers way) { return way == readers::near ? readers::far : readers::near; }

void set(std::uint64_t& past_caches, int of, readers way) {
  const auto bit = std::uint64_t{1} << of;
  past_caches = way == readers::far ? past_caches | bit : past_caches & ~bit;
}

}  // namespace

movement movement_of(const header& head) {
  if (!is_reduction(head.op)) return movement::gather;
  return itemsize(head.tensors[0].type) < 4 ? movement::narrow_sum : movement::sum;
}

int size_class(movement what, std::int64_t bytes) {
  constexpr int sizes = 16, smallest = 15;  // 16 KiB
  const int doubled = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(bytes))) - smallest;
  return std::clamp(doubled, 0, sizes - 1) + static_cast<int>(what) * sizes;
}

void habits::learn(int of, readers way, double cost) {
  set(ways_.next, of, next(habits_[of], way, cost));
  set(ways_.best, of, habits_[of].best);
}

void habits::pass(int of) { set(ways_.next, of, habits_[of].best); }

readers habits::next(habit& of, readers way, double cost) {
  auto& usual = of.costs[static_cast<int>(way)];
  const auto& best = of.costs[static_cast<int>(of.best)];
  const bool is_news = usual == 0 || cost > changed * usual;
  const bool is_better = way != of.best && cost < clearly * best;
  usual = usual == 0 || is_better ? cost : (usual + cost) / 2;
  if (way != of.best) {
    if (is_better) of.best = way;
    of.pause = is_better ? shortest_pause : std::clamp(2 * of.pause, shortest_pause, longest_pause);
    of.left = of.pause;
    return of.best;
  }
  of.left = is_news ? 0 : of.left - 1;
  return of.left > 0 ? of.best : other(of.best);
}

}  // namespace sheaf::shm
