// SPDX-License-Identifier: MIT
#include "shm/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bitset>
#include <ranges>
#include <utility>

namespace sheaf::shm {

std::vector<int> own_cores() {
  cpu_set_t allowed;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

int core_count() { return std::max(1, static_cast<int>(own_cores().size())); }

void move_to(int core) {
  cpu_set_t allowed, one;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  if (::sched_setaffinity(0, sizeof one, &one) != 0) return;
  ::sched_setaffinity(0, sizeof allowed, &allowed);
}

std::optional<int> seats::free_one(int rank, const std::vector<int>& cores) const {
  for (const int core : cores) {
    const auto is_here = [&](int other) { return other != rank && taken_[other] == core; };
    if (std::ranges::none_of(std::views::iota(0, static_cast<int>(taken_.size())), is_here)) return core;
  }
  return std::nullopt;
}

std::optional<int> seats::even_one(int rank, const std::vector<int>& cores) const {
  std::vector<int> counts(cores.size());
  auto now = taken_;
  for (const int one : now) {
    if (const auto at = std::ranges::find(cores, one); at != cores.end()) ++counts[at - cores.begin()];
  }
  while (!counts.empty()) {
    const auto [least, most] = std::ranges::minmax_element(counts);
    if (*most - *least < 2) break;
    const auto from = cores[most - counts.begin()], to = cores[least - counts.begin()];
    *std::ranges::find(now | std::views::reverse, from) = to;
    --*most, ++*least;
  }
  return now[rank] == taken_[rank] ? std::nullopt : std::optional(now[rank]);
}

void seats::change(int rank, int core) {
  taken_[rank] = core;
  changed_ = true;
  if (enough_) return;
  std::bitset<CPU_SETSIZE> seen;
  apart_ = std::ranges::all_of(taken_, [&](int one) {
    if (one < 0 || one >= CPU_SETSIZE || seen[one]) return false;
    seen[one] = true;
    return true;
  });
}

}  // namespace sheaf::shm
