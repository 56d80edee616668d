// SPDX-License-Identifier: MIT
#include "p2p/scratch.hpp"

#include <algorithm>

namespace sheaf::p2p {
namespace {

// Blocks of few sizes fit each other's uses.
constexpr std::size_t grain = std::size_t{64} << 10;

}  // namespace

memory scratch::take(std::size_t bytes) {
  memory block;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [&](const memory& free) { return free.size >= bytes; };
    if (const auto found = std::find_if(free_.begin(), free_.end(), fits); found != free_.end()) {
      block = std::move(*found);
      free_.erase(found);
      held_ -= block.size;
    }
  }
  if (!block.data) block = allocate((bytes + grain - 1) / grain * grain);
  std::weak_ptr<scratch> pool = weak_from_this();
  const auto* data = block.data;
  std::shared_ptr<const void> owner(data, [pool, block](const void*) {
    if (const auto alive = pool.lock()) alive->put_back(block);
  });
  return {block.data, bytes, std::move(owner)};
}

void scratch::put_back(memory block) {
  const std::lock_guard lock(mutex_);
  if (held_ + block.size > scratch_bytes) return;
  held_ += block.size;
  free_.push_back(std::move(block));
}

}  // namespace sheaf::p2p
