// SPDX-License-Identifier: MIT
#include "p2p/shares.hpp"

#include <algorithm>

namespace sheaf::p2p {
namespace {

constexpr std::int64_t grain = 64;  // a multiple of every element's size

}  // namespace

shares::shares(const layout& at, std::int64_t piece_bytes) : by_reducer_(at.sizes.size()) {
  const auto limit = std::max(grain, piece_bytes / grain * grain);
  for (int owner = 0; owner < static_cast<int>(at.sizes.size()); ++owner) {
    const auto block = at.block_bytes(owner);
    for (std::int64_t first = 0; first < block; first += limit) {
      by_reducer_[owner].push_back(pieces_.size());
      pieces_.push_back({pieces_.size(), owner, owner, first, std::min(limit, block - first)});
    }
  }
}

std::int64_t shares::steps() const {
  std::size_t most = 0;
  for (const auto& own : by_reducer_) most = std::max(most, own.size());
  return static_cast<std::int64_t>(most);
}

const piece* shares::at(int reducer, std::int64_t step) const {
  const auto& own = by_reducer_[reducer];
  return step < static_cast<std::int64_t>(own.size()) ? &pieces_[own[step]] : nullptr;
}

}  // namespace sheaf::p2p
