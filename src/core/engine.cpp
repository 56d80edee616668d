// SPDX-License-Identifier: MIT
#include "core/engine.hpp"

#include <unistd.h>

#include <new>

#include "core/progress.hpp"

namespace sheaf {
namespace {

constexpr std::align_val_t cache_line{64};

}  // namespace

memory allocate(std::size_t bytes) {
  const std::shared_ptr<void> owner(::operator new(bytes, cache_line),
                                    [](void* data) { ::operator delete(data, cache_line); });
  return {static_cast<std::byte*>(owner.get()), bytes, owner};
}

std::shared_ptr<const std::vector<std::byte>> payload::written() const {
  const auto own = std::make_shared<std::vector<std::byte>>(bytes);
  if (bytes > 0) write(own->data());
  return own;
}

std::shared_ptr<progress> engine::line() {
  const std::lock_guard lock(line_mutex_);
  // A child of fork has none of its parent's threads. What its parent left is not to be touched.
  if (line_ && line_->owner() != getpid()) new std::shared_ptr<progress>(std::move(line_));
  if (!line_) line_ = std::make_shared<progress>();
  return line_;
}

}  // namespace sheaf
