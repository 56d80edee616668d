// SPDX-License-Identifier: MIT
// Which way blocks of a device's tensors go, at the sizes where it changes.
#include "core/way.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace sheaf {
namespace {

using extents = std::vector<std::int64_t>;

constexpr std::int64_t KiB = 1024, MiB = 1024 * KiB;

// Bytes by rank.
way of(const extents& sizes) { return way_of(make_layout(extents{0}, 0, sizes, 1)); }

TEST(way, even_blocks_go_by_one_collective_whatever_their_size) {
  EXPECT_EQ(of({16, 16, 16}), way::even);
  EXPECT_EQ(of({3, 3}), way::even);
  EXPECT_EQ(of({64 * MiB, 64 * MiB}), way::even);
  EXPECT_EQ(of({5}), way::even);
  EXPECT_EQ(of({0, 0}), way::even);
}

TEST(way, small_results_go_directly) {
  EXPECT_EQ(of({1, 2, 3}), way::direct);
  EXPECT_EQ(of({0, 0, 1}), way::direct);
  EXPECT_EQ(of({MiB / 4, MiB / 4 - 16}), way::direct);
  EXPECT_EQ(of({MiB / 4, MiB / 4, MiB / 4, MiB / 8, MiB / 8}), way::direct);
  EXPECT_EQ(of({MiB / 4, MiB / 4, MiB / 4, MiB / 8, MiB / 8 + 16}), way::grouped);
}

// Rank 0 has everything, and would send it once for each of the others.
TEST(way, no_rank_sends_a_large_block_to_each_other) {
  const auto alone = [](std::int64_t bytes, std::size_t world) {
    extents sizes(world, 0);
    sizes[0] = bytes;
    return of(sizes);
  };
  for (const std::size_t world : {2, 4, 13}) {
    EXPECT_EQ(alone(256 * KiB, world), way::direct);
    EXPECT_EQ(alone(256 * KiB + 16, world), way::grouped);
  }
  EXPECT_EQ(alone(256 * KiB, 14), way::grouped);
  EXPECT_EQ(alone(3 * MiB / 63, 64), way::direct);
  EXPECT_EQ(alone(3 * MiB / 63 + 1, 64), way::grouped);
}

TEST(way, blocks_that_begin_anywhere_are_staged) {
  EXPECT_EQ(of({MiB + 4, MiB, MiB}), way::staged);
  EXPECT_EQ(of({MiB + 16, MiB, MiB}), way::grouped);
  EXPECT_EQ(of({MiB, MiB, MiB + 4}), way::grouped);  // nothing begins behind it
  EXPECT_EQ(of({MiB + 4, 0, 0}), way::grouped);
  EXPECT_EQ(of({4 * MiB + 4, 4 * MiB, 0}), way::grouped);
  extents many(64, 1);
  many[0] = 256 * KiB - 63;
  EXPECT_EQ(of(many), way::staged);
  many[0] -= 1;
  EXPECT_EQ(of(many), way::grouped);
}

}  // namespace
}  // namespace sheaf
