// SPDX-License-Identifier: MIT
#include "core/shares.hpp"

#include <algorithm>

namespace sheaf {
namespace {

constexpr std::int64_t grain = 64;  // a multiple of every element's size

}  // namespace

bool is_lopsided(const layout& at, std::int64_t large_block) {
  std::int64_t largest = 0;
  for (int owner = 0; owner < static_cast<int>(at.sizes.size()); ++owner) {
    largest = std::max(largest, at.block_bytes(owner));
  }
  return largest >= large_block && largest / 3 * 2 > at.bytes() / static_cast<std::int64_t>(at.sizes.size());
}

shares::shares(const layout& at, std::int64_t piece_bytes, bool balanced)
    : limit_(std::max(grain, piece_bytes / grain * grain)), by_reducer_(at.sizes.size()) {
  const auto world = static_cast<int>(at.sizes.size());
  const auto even = (at.bytes() / world + grain) / grain * grain;
  const auto share = balanced ? even : at.bytes();
  for (int owner = 0; owner < world; ++owner) add(owner, owner, 0, std::min(share, at.block_bytes(owner)));

  int helper = 0;
  auto spare = share - at.block_bytes(helper);
  for (int owner = 0; owner < world; ++owner) {
    for (auto first = share; first < at.block_bytes(owner);) {
      while (spare <= 0) spare = share - at.block_bytes(++helper);
      const auto bytes = std::min(spare, at.block_bytes(owner) - first);
      add(owner, helper, first, bytes);
      first += bytes;
      spare -= bytes;
    }
  }
}

void shares::add(int owner, int reducer, std::int64_t first, std::int64_t bytes) {
  for (const auto end = first + bytes; first < end; first += limit_) {
    by_reducer_[reducer].push_back(pieces_.size());
    pieces_.push_back({pieces_.size(), owner, reducer, first, std::min(limit_, end - first)});
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

}  // namespace sheaf
