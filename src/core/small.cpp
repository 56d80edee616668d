// SPDX-License-Identifier: MIT
#include "core/small.hpp"

#include <array>
#include <cstdlib>
#include <new>

namespace sheaf::small {
namespace {

// Blocks of one size each. A line before the data says which size it is: nobody need remember it.
constexpr std::size_t line = 64, classes = 7, most = 32;
static_assert(line << (classes - 1) == most_bytes);

void* begin_of(void* data) { return static_cast<std::byte*>(data) - line; }

// Memory may come and go when this thread's other variables are gone: this one has nothing to destroy.
constinit thread_local bool is_over = false;

struct kept {
  std::array<std::size_t, classes> counts{};
  std::array<std::array<void*, most>, classes> free;

  ~kept() {
    is_over = true;
    for (std::size_t which = 0; which < classes; ++which) {
      for (std::size_t i = 0; i < counts[which]; ++i) std::free(begin_of(free[which][i]));
    }
  }
};

kept& cache() {
  thread_local kept mine;
  return mine;
}

std::size_t class_of(std::size_t bytes) {
  std::size_t which = 0;
  while (line << which < bytes) ++which;
  return which;
}

}  // namespace

void* take(std::size_t bytes) {
  const auto which = class_of(bytes);
  if (!is_over) {
    auto& mine = cache();
    if (mine.counts[which] > 0) return mine.free[which][--mine.counts[which]];
  }
  void* block = nullptr;
  if (posix_memalign(&block, line, line + (line << which)) != 0) throw std::bad_alloc();
  *static_cast<std::size_t*>(block) = which;
  return static_cast<std::byte*>(block) + line;
}

void give_back(void* data) noexcept {
  const auto which = *static_cast<std::size_t*>(begin_of(data));
  if (is_over || cache().counts[which] == most) return std::free(begin_of(data));
  auto& mine = cache();
  mine.free[which][mine.counts[which]++] = data;
}

}  // namespace sheaf::small
