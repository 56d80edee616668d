// SPDX-License-Identifier: MIT
#include "shm/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <bitset>

namespace sheaf::shm {

int core_count() {
  cpu_set_t allowed;
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

void move_to_core(const std::function<bool(int)>& taken) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || taken(core)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ::sched_setaffinity(0, sizeof allowed, &allowed);
    return;
  }
}

void seats::change(int rank, int core) {
  taken_[rank] = core;
  if (enough_) return;
  std::bitset<CPU_SETSIZE> seen;
  apart_ = std::ranges::all_of(taken_, [&](int one) {
    if (one < 0 || one >= CPU_SETSIZE || seen[one]) return false;
    seen[one] = true;
    return true;
  });
}

}  // namespace sheaf::shm
