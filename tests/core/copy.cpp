// SPDX-License-Identifier: MIT
// Blocks between their contiguous form and their place, against a copy of single bytes.
#include "core/copy.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace {

using bytes = std::vector<std::byte>;
using extents = std::vector<std::int64_t>;
using sheaf::layout;

bytes random_bytes(std::mt19937& random, std::int64_t count) {
  bytes made(count);
  for (auto& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

// Byte `at` of the block's contiguous form, as an index into the gathered tensor.
std::int64_t place_of(const layout& at, int rank, std::int64_t position) {
  const auto chunk = at.block_chunk_bytes(rank);
  return position / chunk * at.chunk_bytes() + at.block_offset(rank) + position % chunk;
}

bytes packed_by_bytes(const layout& at, int rank, const bytes& whole, std::int64_t first, std::int64_t count) {
  bytes packed;
  for (auto i = first; i < first + count; ++i) packed.push_back(whole[place_of(at, rank, i)]);
  return packed;
}

layout random_layout(std::mt19937& random) {
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  const extents shape{draw(0, 5), 1, draw(0, 3), draw(0, 5)};
  extents sizes(draw(1, 5));
  for (auto& size : sizes) size = draw(0, 4);
  return sheaf::make_layout(shape, draw(0, 3), sizes, std::int64_t{1} << draw(0, 4));
}

TEST(copy, pack_reads_any_interval_of_a_block) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    const auto at = random_layout(random);
    const auto whole = random_bytes(random, at.bytes());
    for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) {
      const auto first = std::uniform_int_distribution<std::int64_t>(0, at.block_bytes(rank))(random);
      const auto count = std::uniform_int_distribution<std::int64_t>(0, at.block_bytes(rank) - first)(random);
      bytes packed(count);
      sheaf::pack(at, rank, whole.data(), first, count, packed.data());
      ASSERT_EQ(packed, packed_by_bytes(at, rank, whole, first, count));
    }
  }
}

TEST(copy, place_writes_its_block_and_nothing_else) {
  std::mt19937 random(13);
  for (int round = 0; round < 500; ++round) {
    const auto at = random_layout(random);
    auto whole = random_bytes(random, at.bytes());
    auto expected = whole;
    for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) {
      const auto packed = random_bytes(random, at.block_bytes(rank));
      for (std::int64_t i = 0; i < at.block_bytes(rank); ++i) expected[place_of(at, rank, i)] = packed[i];
      sheaf::place(at, rank, packed.data(), whole.data());
      ASSERT_EQ(whole, expected);
    }
  }
}

TEST(copy, every_chunk_width) {
  std::mt19937 random(17);
  for (std::int64_t width = 1; width <= 70; ++width) {
    const auto at = sheaf::make_layout(extents{9, 1}, 1, extents{3, width, 2}, 1);
    const auto whole = random_bytes(random, at.bytes());
    bytes packed(at.block_bytes(1));
    sheaf::pack(at, 1, whole.data(), 0, at.block_bytes(1), packed.data());
    ASSERT_EQ(packed, packed_by_bytes(at, 1, whole, 0, at.block_bytes(1)));
    bytes again(at.bytes());
    for (const int rank : {0, 1, 2}) {
      bytes block(at.block_bytes(rank));
      sheaf::pack(at, rank, whole.data(), 0, at.block_bytes(rank), block.data());
      sheaf::place(at, rank, block.data(), again.data());
    }
    ASSERT_EQ(again, whole);
  }
}

// Past the caches, from any address to any other.
TEST(copy, for_far_readers) {
  std::mt19937 random(19);
  for (int round = 0; round < 200; ++round) {
    const auto width = std::uniform_int_distribution<std::int64_t>(900, 2500)(random);
    const auto at = sheaf::make_layout(extents{3, 1}, 1, extents{width / 3, width, 5}, 1);
    const auto whole = random_bytes(random, at.bytes());
    const auto count = at.block_bytes(1);
    const auto shift = round % 67;
    bytes packed(shift + count + 1);
    sheaf::pack(at, 1, whole.data(), 0, count, packed.data() + shift, sheaf::readers::far);
    const auto expected = packed_by_bytes(at, 1, whole, 0, count);
    ASSERT_EQ(bytes(packed.begin() + shift, packed.end() - 1), expected);
    ASSERT_EQ(packed.back(), std::byte{0});

    auto again = random_bytes(random, at.bytes());
    auto wanted = again;
    for (std::int64_t i = 0; i < count; ++i) wanted[place_of(at, 1, i)] = expected[i];
    sheaf::place(at, 1, packed.data() + shift, again.data(), sheaf::readers::far);
    ASSERT_EQ(again, wanted);
  }
}

TEST(copy, empty_blocks_touch_no_memory) {
  const auto rows = sheaf::make_layout(extents{2, 3}, 0, extents{0, 0}, 4);
  const auto columns = sheaf::make_layout(extents{0, 3}, 1, extents{1, 2}, 4);
  for (const auto& at : {rows, columns}) {
    sheaf::pack(at, 1, nullptr, 0, 0, nullptr);
    sheaf::place(at, 1, nullptr, nullptr);
  }
}

}  // namespace
