// SPDX-License-Identifier: MIT
// Private memory that is used again: fresh memory costs a page fault a page, more than moving or summing its bytes.
#pragma once

#include <mutex>
#include <vector>

#include "core/engine.hpp"

namespace sheaf {

class warm_memory : public std::enable_shared_from_this<warm_memory> {
 public:
  explicit warm_memory(std::size_t limit) : limit_(limit) {}

  // Goes back with its last owner. At most `limit` bytes wait to be used again.
  memory take(std::size_t bytes);
  std::size_t held() const;

 private:
  void put_back(memory block);

  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::vector<memory> free_;  // the last one back is the first to go out
  std::size_t held_ = 0;
};

}  // namespace sheaf
