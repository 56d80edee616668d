// SPDX-License-Identifier: MIT
#include "core/bundle.hpp"

#include <algorithm>
#include <cstring>
#include <sheaf/error.hpp>

#include "core/copy.hpp"

namespace sheaf {
namespace {

constexpr std::int64_t element_grain = 16;  // a multiple of every element's size
constexpr std::int64_t result_grain = 64;   // as allocators give

std::int64_t rounded(std::int64_t bytes, std::int64_t grain) {
  std::int64_t up = 0;
  if (__builtin_add_overflow(bytes, grain - 1, &up)) {
    throw value_error("the gathered tensors would need more than 2^63 - 1 bytes");
  }
  return up / grain * grain;
}

std::int64_t added(std::int64_t sum, std::int64_t term) {
  if (__builtin_add_overflow(sum, term, &sum)) {
    throw value_error("the gathered tensors would need more than 2^63 - 1 bytes");
  }
  return sum;
}

}  // namespace

// Part of one tensor's block: [first, first + count) of it lies `from` bytes into the interval asked for.
struct bundle::interval {
  const part& of;
  std::int64_t first;
  std::int64_t count;
  std::int64_t from;
};

std::vector<std::int64_t> packed_places(std::span<const std::int64_t> bytes) {
  std::vector<std::int64_t> places{0};
  for (const auto block : bytes) {
    places.push_back(added(places.back(), bytes.size() == 1 ? block : rounded(block, element_grain)));
  }
  return places;
}

void pack_blocks(std::span<const memory> blocks, std::byte* to) {
  std::vector<std::int64_t> bytes;
  for (const auto& block : blocks) bytes.push_back(static_cast<std::int64_t>(block.size));
  const auto places = packed_places(bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (bytes[i] > 0) std::memcpy(to + places[i], blocks[i].data, blocks[i].size);
    std::fill_n(to + places[i] + bytes[i], places[i + 1] - places[i] - bytes[i], std::byte{0});
  }
}

bundle::bundle(int rank, std::vector<part> parts) : rank_(rank), parts_(std::move(parts)) {
  const auto world = static_cast<int>(parts_.front().at.sizes.size());
  packed_.row_bytes = 1;
  std::vector<std::int64_t> bytes(parts_.size());
  for (int one = 0; one < world; ++one) {
    for (std::size_t i = 0; i < parts_.size(); ++i) bytes[i] = parts_[i].at.block_bytes(one);
    places_.push_back(packed_places(bytes));
    packed_.sizes.push_back(places_.back().back());
    packed_.offsets.push_back(packed_.rows);
    packed_.rows = added(packed_.rows, places_.back().back());
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
  std::vector<memory> blocks;
  for (const auto& one : parts_) blocks.push_back(one.own);
  pack_blocks(blocks, to);
}

void bundle::unpack(int rank, const std::byte* from) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    place(parts_[i].at, rank, from + places_[rank][i], parts_[i].whole.data);
  }
}

template <class Body>
void bundle::for_each(int owner, std::int64_t first, std::int64_t count, Body&& body) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto begin = places_[owner][i];
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

void bundle::pack(int owner, std::int64_t first, std::int64_t count, std::byte* to) const {
  std::int64_t done = 0;
  for_each(owner, first, count, [&](const interval& one) {
    std::fill_n(to + done, one.from - done, std::byte{0});
    sheaf::pack(one.of.at, owner, one.of.whole.data, one.first, one.count, to + one.from);
    done = one.from + one.count;
  });
  std::fill_n(to + done, count - done, std::byte{0});
}

void bundle::sum(int owner, std::int64_t first, std::span<const std::byte* const> sources, std::byte* out,
                 std::size_t count) const {
  std::vector<const std::byte*> shifted(sources.size());
  for_each(owner, first, static_cast<std::int64_t>(count), [&](const interval& one) {
    for (std::size_t r = 0; r < sources.size(); ++r) shifted[r] = sources[r] + one.from;
    sum_ranks(one.of.type, one.of.op, shifted, out + one.from, static_cast<std::size_t>(one.count));
  });
}

}  // namespace sheaf
