// SPDX-License-Identifier: MIT
// The tensors of one call, one or several of any types. Packed, what a rank holds of all of them is one run of bytes:
// its block of the first tensor, then that of the next.
#pragma once

#include <span>
#include <vector>

#include "core/engine.hpp"
#include "core/stream.hpp"

namespace sheaf {

// One of them. A gather goes from `own` to `whole`, a reduction from `whole` to `own`.
struct part {
  layout at;
  dtype type = dtype::uint8;
  reduction op = reduction::sum;
  memory whole = {};  // of the gathered tensor
  memory own = {};    // of the own block
};

// What a block of so many bytes takes in the packed form of `count` blocks. Throws value_error beyond 63 bits.
std::int64_t packed_bytes(std::int64_t bytes, std::size_t count);
// A block to its place in their packed form, where it begins at `to`; returns where it ends. What is between it and the
// next one is zero.
std::byte* pack_block(const memory& block, std::size_t count, std::byte* to);
// What every rank's blocks take in a gather of `tensors`. Throws value_error beyond 63 bits.
std::vector<std::int64_t> packed_bytes(const one_or_many<record>& tensors, const heard& said);

class bundle {
 public:
  // Throws value_error when all of it is more than 63 bits of bytes.
  bundle(int rank, std::vector<part> parts);

  std::span<const part> parts() const { return parts_; }
  // Packed blocks as rows of bytes. Several blocks in a run begin at multiples of every element's size.
  const layout& packed() const { return packed_; }
  // All gathered tensors in one memory, as one block: where each begins, and the whole.
  std::size_t whole_place(std::size_t tensor) const { return whole_places_[tensor]; }
  const layout& wholes() const { return wholes_; }
  // Where a tensor begins in a rank's packed block.
  std::int64_t place_of(int rank, std::size_t tensor) const { return places_[rank * parts_.size() + tensor]; }
  std::size_t own_place(std::size_t tensor) const { return static_cast<std::size_t>(place_of(rank_, tensor)); }

  void put_whole(std::size_t tensor, memory whole) { parts_[tensor].whole = std::move(whole); }
  void put_own(std::size_t tensor, memory own) { parts_[tensor].own = std::move(own); }

  // A gather's packed blocks: the own one, and those of a rank into the gathered tensors.
  void pack_own(std::byte* to) const;
  void unpack(int rank, const std::byte* from) const;

  // Bytes [first, first + count) of owner's packed block, of a reduction: where they lie in one run already, else none;
  // a copy of them; and the sum over ranks of such bytes, in rank order.
  memory run(int owner, std::int64_t first, std::int64_t count) const;
  void pack(int owner, std::int64_t first, std::int64_t count, std::byte* to, readers next = readers::near) const;
  void sum(int owner, std::int64_t first, std::span<const std::byte* const> sources, std::byte* out, std::size_t count,
           bool streamed = false) const;

 private:
  struct interval;
  template <class Body>
  void for_each(int owner, std::int64_t first, std::int64_t count, Body&& body) const;

  int rank_;
  std::vector<part> parts_;
  std::vector<std::int64_t> places_;  // by rank and tensor, in the packed block
  std::vector<std::size_t> whole_places_;
  layout packed_;
  layout wholes_;
};

}  // namespace sheaf
