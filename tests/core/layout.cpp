// SPDX-License-Identifier: MIT
// Sizes and shape to blocks, against a walk over every element.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <sheaf/error.hpp>
#include <sheaf/layout.hpp>
#include <string>
#include <vector>

namespace {

using sheaf::make_layout;
using extents = std::vector<std::int64_t>;

constexpr auto largest = std::numeric_limits<std::int64_t>::max();

std::string refusal(const extents& shape, std::int64_t dim, const extents& sizes, std::int64_t itemsize = 4) {
  try {
    make_layout(shape, dim, sizes, itemsize);
  } catch (const sheaf::value_error& error) {
    return error.what();
  }
  return "accepted";
}

// Where element (o, row, i) of the gathered tensor lies, counted as any contiguous tensor is.
std::int64_t address(const extents& index, const extents& shape, std::int64_t itemsize) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat * itemsize;
}

// Calls `visit` with every index of `shape` in order.
template <class Visit>
void walk(const extents& shape, Visit&& visit) {
  const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t flat = 0; flat < count; ++flat) {
    extents index(shape.size());
    auto rest = flat;
    for (auto d = shape.size(); d-- > 0;) {
      index[d] = rest % shape[d];
      rest /= shape[d];
    }
    visit(index);
  }
}

TEST(layout, middle_dim) {
  const auto at = make_layout(extents{2, 99, 3}, 1, extents{4, 0, 1}, 8);
  EXPECT_EQ(at.outer, 2);
  EXPECT_EQ(at.row_bytes, 24);
  EXPECT_EQ(at.rows, 5);
  EXPECT_EQ(at.offsets, (extents{0, 4, 4}));
  EXPECT_EQ(at.chunk_bytes(), 120);
  EXPECT_EQ(at.bytes(), 240);
  EXPECT_EQ(at.block_chunk_bytes(0), 96);
  EXPECT_EQ(at.block_bytes(0), 192);
  EXPECT_EQ(at.block_bytes(1), 0);
  EXPECT_EQ(at.block_offset(2), 96);
}

TEST(layout, every_element_is_where_a_walk_finds_it) {
  std::mt19937 random(7);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution<std::int64_t>(low, high)(random); };
  for (int round = 0; round < 300; ++round) {
    extents shape(draw(1, 4));
    for (auto& extent : shape) extent = draw(0, 4);
    const auto dim = draw(0, static_cast<int>(shape.size()) - 1);
    extents sizes(draw(1, 5));
    for (auto& size : sizes) size = draw(0, 3);
    const auto itemsize = std::int64_t{1} << draw(0, 4);
    const auto at = make_layout(shape, dim, sizes, itemsize);

    auto gathered = shape;
    gathered[dim] = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::int64_t before = 0;
    for (int rank = 0; rank < static_cast<int>(sizes.size()); ++rank) {
      auto block = shape;
      block[dim] = sizes[rank];
      walk(block, [&](extents index) {
        const auto packed = address(index, block, itemsize);
        index[dim] += before;
        const auto chunk = packed / at.block_chunk_bytes(rank);
        const auto inside = packed % at.block_chunk_bytes(rank);
        ASSERT_EQ(at.block_offset(rank) + chunk * at.chunk_bytes() + inside, address(index, gathered, itemsize));
      });
      before += sizes[rank];
    }
  }
}

TEST(layout, zero_extents) {
  EXPECT_EQ(make_layout(extents{0, 5}, 0, extents{0, 0, 0}, 4).bytes(), 0);
  EXPECT_EQ(make_layout(extents{3, 0}, 0, extents{3, 2}, 4).bytes(), 0);
  EXPECT_EQ(make_layout(extents{0, 3}, 1, extents{3, 2}, 4).bytes(), 0);
  // A zero empties the tensor even where the other extents alone would not fit.
  EXPECT_EQ(make_layout(extents{1, largest, largest, 0}, 0, extents{1, 1}, 8).bytes(), 0);
}

TEST(layout, up_to_63_bits) {
  EXPECT_EQ(make_layout(extents{1}, 0, extents{largest - 5, 5}, 1).bytes(), largest);
  const auto rows = refusal({1}, 0, {largest, 1}, 1);
  EXPECT_NE(rows.find("more than 2^63 - 1 bytes"), std::string::npos) << rows;
  EXPECT_EQ(make_layout(extents{1}, 0, extents{largest / 8}, 8).bytes(), largest / 8 * 8);
  for (const auto& text : {
           refusal({1}, 0, {largest / 8, 1}, 8),
           refusal({1, 1LL << 32}, 0, {1LL << 31}, 1),
           refusal({1LL << 32, 1}, 1, {1LL << 30, 1LL << 30}, 1),
           refusal({1LL << 62, 1LL << 62, 1}, 2, {1}, 1),
           refusal({1, 1LL << 62, 1LL << 62}, 0, {1}, 1),
       }) {
    EXPECT_NE(text.find("more than 2^63 - 1 bytes"), std::string::npos) << text;
  }
}

TEST(layout, refusals_name_argument_expected_and_got) {
  EXPECT_EQ(refusal({}, 0, {1}), "shape: expected at least one dim, got a 0-d tensor; use reshape(1)");
  EXPECT_EQ(refusal({2, 3}, 2, {1}), "dim: expected 0 to 1 for shape [2, 3], got 2");
  EXPECT_EQ(refusal({2, 3}, -1, {1}), "dim: expected 0 to 1 for shape [2, 3], got -1");
  EXPECT_EQ(refusal({2, -3}, 0, {1}), "shape: expected no negative extent, got [2, -3] (dim 1)");
  EXPECT_EQ(refusal({2, 3}, 0, {}), "sizes: expected one size a rank, got none");
  EXPECT_EQ(refusal({2, 3}, 0, {4, -1}), "sizes: expected no negative size, got -1 for rank 1");
  EXPECT_EQ(refusal({2, 3}, 0, {4}, 0), "itemsize: expected at least 1 byte, got 0");
  EXPECT_EQ(refusal({-2, 3}, 0, {4}), "accepted") << "the extent along dim is not looked at";
}

}  // namespace
