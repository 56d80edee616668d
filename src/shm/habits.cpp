// SPDX-License-Identifier: MIT
#include "shm/habits.hpp"

#include <algorithm>

namespace sheaf::shm {
namespace {

constexpr int shortest_pause = 2, longest_pause = 32;
constexpr double clearly = 0.95;  // less than the best one by more than chance
constexpr double changed = 1.4;   // times as long as of late

readers other(readers way) { return way == readers::near ? readers::far : readers::near; }

}  // namespace

void habits::learn(std::int64_t bytes, readers way, double cost) {
  const auto bit = std::uint64_t{1} << class_of(bytes);
  const auto then = next(habits_[class_of(bytes)], way, cost);
  past_caches_ = then == readers::far ? past_caches_ | bit : past_caches_ & ~bit;
}

readers habits::next(habit& of, readers way, double cost) {
  auto& usual = of.costs[static_cast<int>(way)];
  const bool is_news = usual == 0 || cost > changed * usual;
  usual = usual == 0 ? cost : (usual + cost) / 2;
  const auto& best = of.costs[static_cast<int>(of.best)];
  if (best == 0) return of.best;
  if (way != of.best) {
    const bool is_better = cost < clearly * best;
    if (is_better) of.best = way;
    of.pause = is_better ? shortest_pause : std::clamp(2 * of.pause, shortest_pause, longest_pause);
    of.left = of.pause;
    return of.best;
  }
  of.left = is_news ? 0 : of.left - 1;
  return of.left > 0 ? of.best : other(of.best);
}

}  // namespace sheaf::shm
