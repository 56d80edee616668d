// SPDX-License-Identifier: MIT
#include "core/warm.hpp"

#include <unistd.h>

#include <algorithm>

#include "core/pages.hpp"

namespace sheaf {
namespace {

// Blocks of few sizes fit each other's uses: eight to each doubling.
std::size_t size_class(std::size_t bytes) {
  std::size_t step = std::size_t{64} << 10;
  while (step * 16 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

}  // namespace

memory warm_memory::take(std::size_t bytes) {
  const auto wanted = size_class(bytes);
  memory block;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const memory& one) { return one.size >= wanted && one.size <= 2 * wanted; };
    if (const auto found = std::find_if(free_.rbegin(), free_.rend(), fits); found != free_.rend()) {
      block = std::move(*found);
      free_.erase(std::next(found).base());
      held_ -= block.size;
    }
  }
  if (!block.data) {
    block = allocate(wanted);
    prefer_huge_pages(block.data, bytes);  // what is not asked for stays untouched
  }
  const auto* data = block.data;
  std::shared_ptr<const void> owner(data, [home = weak_from_this(), block, process = ::getpid()](const void*) {
    // A child of fork may have been born while another thread held the lock.
    if (process != ::getpid()) return;
    if (const auto alive = home.lock()) alive->put_back(block);
  });
  return {block.data, bytes, std::move(owner)};
}

void warm_memory::put_back(memory block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(block));
  held_ += free_.back().size;
  while (held_ > limit_) {
    held_ -= free_.front().size;
    free_.erase(free_.begin());
  }
}

std::size_t warm_memory::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

}  // namespace sheaf
