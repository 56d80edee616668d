// SPDX-License-Identifier: MIT
#include "shm/cores.hpp"

#include <sched.h>

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

}  // namespace sheaf::shm
