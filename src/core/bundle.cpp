// SPDX-License-Identifier: MIT
#include "core/bundle.hpp"

#include <algorithm>
#include <cstring>
#include <sheaf/error.hpp>

#include "core/copy.hpp"

namespace sheaf {
namespace {

constexpr auto too_large = "the gathered tensors would need more than 2^63 - 1 bytes";
constexpr std::int64_t element_grain = 16;  // a multiple of every element's size
constexpr std::int64_t result_grain = 64;   // as allocators give

std::int64_t rounded(std::int64_t bytes, std::int64_t grain) {
  std::int64_t up = 0;
  if (__builtin_add_overflow(bytes, grain - 1, &up)) {
    throw value_error(too_large);
  }
  return up / grain * grain;
}

std::int64_t added(std::int64_t sum, std::int64_t term) {
  if (__builtin_add_overflow(sum, term, &sum)) {
    throw value_error(too_large);
  }
  return sum;
}

// With so many rows. A zero extent empties the tensor however large the others are.
std::int64_t block_bytes(record like, std::int64_t rows) {
  like.rows() = rows;
  std::int64_t bytes = std::ranges::count(like.dims(), 0) > 0 ? 0 : itemsize(like.type);
  for (const auto extent : like.dims()) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) throw value_error(too_large);
  }
  return bytes;
}

}  // namespace

// Part of one tensor's block: [first, first + count) of it lies `from` bytes into the interval asked for.
struct bundle::interval {
  const part& of;
  std::int64_t first;
  std::int64_t count;
  std::int64_t from;
};

std::int64_t packed_bytes(std::int64_t bytes, std::size_t count) {
  return count == 1 ? bytes : rounded(bytes, element_grain);
}

std::byte* pack_block(const memory& block, std::size_t count, std::byte* to) {
  if (block.size > 0) std::memcpy(to, block.data, block.size);
  auto* const end = to + packed_bytes(static_cast<std::int64_t>(block.size), count);
  std::fill(to + block.size, end, std::byte{0});
  return end;
}

std::vector<std::int64_t> packed_bytes(const one_or_many<record>& tensors, const heard& said) {
  std::vector<std::int64_t> all(said.world());
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const auto bytes = block_bytes(tensors[tensor], said.rows(rank, tensor));
      all[rank] = added(all[rank], packed_bytes(bytes, tensors.size()));
    }
  }
  return all;
}

bundle::bundle(int rank, std::vector<part> parts) : rank_(rank), parts_(std::move(parts)) {
  const auto world = static_cast<int>(parts_.front().at.sizes.size());
  packed_.row_bytes = 1;
  packed_.sizes.reserve(world);
  packed_.offsets.reserve(world);
  places_.reserve(world * parts_.size());
  whole_places_.reserve(parts_.size());
  for (int one = 0; one < world; ++one) {
    std::int64_t end = 0;
    for (const auto& each : parts_) {
      places_.push_back(end);
      end = added(end, packed_bytes(each.at.block_bytes(one), parts_.size()));
    }
    packed_.sizes.push_back(end);
    packed_.offsets.push_back(packed_.rows);
    packed_.rows = added(packed_.rows, end);
  }
  wholes_.row_bytes = 1;
  for (const auto& one : parts_) {
    whole_places_.push_back(static_cast<std::size_t>(wholes_.rows));
    wholes_.rows = added(wholes_.rows, rounded(one.at.bytes(), result_grain));
  }
  wholes_.sizes = {wholes_.rows};
  wholes_.offsets = {0};
}

void bundle::pack_own(std::byte* to) const {
  for (const auto& one : parts_) to = pack_block(one.own, parts_.size(), to);
}

void bundle::unpack(int rank, const std::byte* from) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    place(parts_[i].at, rank, from + place_of(rank, i), parts_[i].whole.data);
  }
}

template <class Body>
void bundle::for_each(int owner, std::int64_t first, std::int64_t count, Body&& body) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto begin = place_of(owner, i);
    const auto end = begin + parts_[i].at.block_bytes(owner);
    const auto from = std::max(first, begin);
    const auto until = std::min(first + count, end);
    if (from < until) body(interval{parts_[i], from - begin, until - from, from - first});
  }
}

memory bundle::run(int owner, std::int64_t first, std::int64_t count) const {
  memory found;
  for_each(owner, first, count, [&](const interval& one) {
    if (one.count != count || one.of.at.outer != 1) return;
    const auto at = one.of.at.block_offset(owner) + one.first;
    found = one.of.whole.slice(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  });
  return found;
}

void bundle::pack(int owner, std::int64_t first, std::int64_t count, std::byte* to, readers next) const {
  std::int64_t done = 0;
  for_each(owner, first, count, [&](const interval& one) {
    std::fill_n(to + done, one.from - done, std::byte{0});
    sheaf::pack(one.of.at, owner, one.of.whole.data, one.first, one.count, to + one.from, next);
    done = one.from + one.count;
  });
  std::fill_n(to + done, count - done, std::byte{0});
}

void bundle::sum(int owner, std::int64_t first, std::span<const std::byte* const> sources, std::byte* out,
                 std::size_t count, bool streamed) const {
  std::vector<const std::byte*> shifted(sources.size());
  for_each(owner, first, static_cast<std::int64_t>(count), [&](const interval& one) {
    for (std::size_t r = 0; r < sources.size(); ++r) shifted[r] = sources[r] + one.from;
    sum_ranks(one.of.type, one.of.op, shifted, out + one.from, static_cast<std::size_t>(one.count), streamed);
  });
}

}  // namespace sheaf
