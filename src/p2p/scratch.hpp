// SPDX-License-Identifier: MIT
// Memory for pieces on their way, used again by the next: fresh memory would cost more than the sums.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/engine.hpp"

namespace sheaf::p2p {

class scratch : public std::enable_shared_from_this<scratch> {
 public:
  // Goes back into the pool with its last owner.
  memory take(std::size_t bytes);

 private:
  void put_back(memory block);

  std::mutex mutex_;
  std::vector<memory> free_;
  std::size_t held_ = 0;
};

// What the pool keeps at most, and so what all pieces of one call under way should fit in.
inline constexpr std::size_t scratch_bytes = std::size_t{20} << 20;

}  // namespace sheaf::p2p
