// SPDX-License-Identifier: MIT
// Who reduces what: every rank comes to the same plan from the layout alone.
#pragma once

#include <cstdint>
#include <sheaf/layout.hpp>
#include <vector>

namespace sheaf::p2p {

inline constexpr std::int64_t preferred_piece_bytes = std::int64_t{1} << 20;

// Bytes [first, first + bytes) of the owner's block, in its contiguous form.
struct piece {
  std::uint64_t number;
  int owner;
  int reducer;
  std::int64_t first;
  std::int64_t bytes;
};

class shares {
 public:
  // Pieces are at most `piece_bytes` long, rounded down to whole elements of any type.
  shares(const layout& at, std::int64_t piece_bytes);

  const std::vector<piece>& pieces() const { return pieces_; }
  // The most pieces any rank reduces.
  std::int64_t steps() const;
  // What `reducer` reduces in `step`; null when it has done all of its own.
  const piece* at(int reducer, std::int64_t step) const;

 private:
  std::vector<piece> pieces_;
  std::vector<std::vector<std::size_t>> by_reducer_;
};

}  // namespace sheaf::p2p
