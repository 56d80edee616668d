// SPDX-License-Identifier: MIT
#include "shm/bell.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace sheaf::shm {
namespace {

// The kernel looks at the word itself; between processes, so not FUTEX_PRIVATE.
long futex(std::atomic<std::uint32_t>& word, int op, std::uint32_t value, const timespec* limit) {
  return ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), op, value, limit, nullptr, 0);
}

long membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

bool allow_fences() { return membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0; }

bool fence_others() { return membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0; }

void ring(board& own) {
  own.bell.fetch_add(1);
  futex(own.bell, FUTEX_WAKE, INT_MAX, nullptr);
}

void sleep_by(board& of, std::uint32_t heard, clock::time_point until) {
  const auto left = std::chrono::nanoseconds(until - clock::now()).count();
  if (left <= 0) return;
  const timespec limit{static_cast<time_t>(left / 1'000'000'000), static_cast<long>(left % 1'000'000'000)};
  futex(of.bell, FUTEX_WAIT, heard, &limit);
}

}  // namespace sheaf::shm
