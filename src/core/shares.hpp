// SPDX-License-Identifier: MIT
// Who reduces what: every rank comes to the same plan from the layout alone.
#pragma once

#include <cstdint>
#include <sheaf/layout.hpp>
#include <vector>

namespace sheaf {

// Whether some block is well over an even share, and of `large_block` bytes or more: handing results on costs
// something, so small tensors are faster with their owners.
bool is_lopsided(const layout& at, std::int64_t large_block);

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
  // Pieces are at most `piece_bytes` long, rounded down to whole elements of any type. Each owner reduces its own rows;
  // `balanced` takes what is over an even share from ranks with large blocks and gives it to those with small ones.
  shares(const layout& at, std::int64_t piece_bytes, bool balanced);

  const std::vector<piece>& pieces() const { return pieces_; }
  // The most pieces any rank reduces.
  std::int64_t steps() const;
  // What `reducer` reduces in `step`; null when it has done all of its own.
  const piece* at(int reducer, std::int64_t step) const;

 private:
  void add(int owner, int reducer, std::int64_t first, std::int64_t bytes);

  std::int64_t limit_;
  std::vector<piece> pieces_;
  std::vector<std::vector<std::size_t>> by_reducer_;
};

}  // namespace sheaf
