// SPDX-License-Identifier: MIT
#include "core/engine.hpp"

#include <new>

namespace sheaf {
namespace {

constexpr std::align_val_t cache_line{64};

}  // namespace

memory allocate(std::size_t bytes) {
  const std::shared_ptr<void> owner(::operator new(bytes, cache_line),
                                    [](void* data) { ::operator delete(data, cache_line); });
  return {static_cast<std::byte*>(owner.get()), bytes, owner};
}

}  // namespace sheaf
