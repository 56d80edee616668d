// SPDX-License-Identifier: MIT
// Every dtype: gathers move bytes, sums are right to the bit.
#include <cmath>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

constexpr at::ScalarType integers[] = {at::kChar, at::kShort,  at::kInt,    at::kLong,
                                       at::kByte, at::kUInt16, at::kUInt32, at::kUInt64};
constexpr at::ScalarType floats[] = {at::kHalf,          at::kBFloat16,        at::kFloat,
                                     at::kDouble,        at::kComplexHalf,     at::kComplexFloat,
                                     at::kComplexDouble, at::kFloat8_e4m3fn,   at::kFloat8_e4m3fnuz,
                                     at::kFloat8_e5m2,   at::kFloat8_e5m2fnuz, at::kFloat8_e8m0fnu};

extents some_sizes(int world) {
  extents sizes(world, 2);
  sizes[0] = 3;
  if (world > 2) sizes[1] = 0;
  return sizes;
}

void gathered(const group& me, at::ScalarType type) {
  for (const extents& shape : {extents{2, 3, 5}, extents{2, 3, 9001}}) {
    const ragged now{.sizes = some_sizes(me.world()), .dim = 1, .shape = shape, .type = type};
    const auto x = now.block(me.rank());
    expect_equal(all_gather(x, {.dim = 1, .group = me}).tensor, now.gathered(), "learned, " + now.text());
    const auto given = all_gather(x, {.dim = 1, .sizes = now.sizes_tensor(), .group = me}).tensor;
    expect_equal(given, now.gathered(), "sizes given, " + now.text());
  }
}

void every_type_is_gathered(const group& me) {
  gathered(me, at::kBool);
  for (const auto type : integers) gathered(me, type);
  for (const auto type : floats) gathered(me, type);
}

// All of them in one call, plain and started: gathered, and summed where they can be.
void every_type_at_once(const group& me) {
  std::vector<at::ScalarType> types(std::begin(integers), std::end(integers));
  types.insert(types.end(), std::begin(floats), std::end(floats));
  types.push_back(at::kBool);
  for (const std::int64_t width : {5, 9001}) {
    std::vector<ragged> all;
    std::vector<at::Tensor> blocks, wholes;
    for (const auto type : types) {
      all.push_back({.sizes = some_sizes(me.world()), .dim = 1, .shape = {2, 3, width}, .type = type});
      blocks.push_back(all.back().block(me.rank()));
      if (type != at::kBool) wholes.push_back(all.back().whole(me.rank()));
    }
    const auto sizes = all[0].sizes_tensor();
    for (const bool started : {false, true}) {
      const all_gather_coalesced_options one{.dim = 1, .group = me};
      const auto gathered =
          started ? all_gather_coalesced_async(blocks, one).wait() : all_gather_coalesced(blocks, one);
      for (std::size_t i = 0; i < all.size(); ++i) expect_equal(gathered[i].tensor, all[i].gathered(), all[i].text());
      const reduce_scatter_coalesced_options other{.dim = 1, .group = me};
      const auto summed = started ? reduce_scatter_coalesced_async(wholes, sizes, other).wait()
                                  : reduce_scatter_coalesced(wholes, sizes, other);
      for (std::size_t i = 0; i < wholes.size(); ++i) {
        expect_equal(summed[i], all[i].rows_of(all[i].summed(), me.rank()), "sum, " + all[i].text());
      }
    }
  }
}

// Any byte may stand in a float, infinities and NaNs with a payload too: none is changed.
void any_bytes_are_gathered(const group& me) {
  std::vector<at::Tensor> blocks;
  for (const auto type : floats) {
    const ragged now{.sizes = some_sizes(me.world()), .shape = {0, 16}};
    blocks.clear();
    for (int rank = 0; rank < me.world(); ++rank) {
      const auto bytes = static_cast<std::int64_t>(c10::elementSize(type));
      blocks.push_back(noise({now.sizes[rank], 16 * bytes}, rank, at::kByte).view(type));
    }
    expect_equal(all_gather(blocks[me.rank()], {.group = me}).tensor, now.joined(blocks), c10::toString(type));
  }
}

// A sum of ranks' values whose bits depend on the order and on where it is rounded.
ragged sum_of(at::ScalarType type, int world, std::int64_t width = 50) {
  return {.sizes = some_sizes(world), .dim = 1, .shape = {2, 3, width}, .type = type};
}

void sums_are_right_to_the_bit(const group& me) {
  for (const auto type : integers) {
    const auto now = sum_of(type, me.world());
    const auto mine = reduce_scatter(now.whole(me.rank()), now.sizes_tensor(), {.dim = 1, .group = me});
    expect_equal(mine, now.rows_of(now.summed(), me.rank()), "sum, " + now.text());
  }
  for (const auto type : floats) {
    const auto now = sum_of(type, me.world());
    for (const auto op : {reduce_op::sum, reduce_op::mean}) {
      const bool mean = op == reduce_op::mean;
      const auto mine = reduce_scatter(now.whole(me.rank()), now.sizes_tensor(), {.dim = 1, .op = op, .group = me});
      const auto want = now.rows_of(mean ? now.averaged() : now.summed(), me.rank());
      expect_equal(mine, want, (mean ? "mean, " : "sum, ") + now.text());
    }
  }
}

// 1 + 2^-24 + 2^-24 is 1 from the left in float32 and not from the right; in float16 each 1 would vanish beside 2048.
void order_and_rounding_are_those_of_the_contract(const group& me) {
  if (me.world() % 2 == 0) return;  // then float16 cannot hold the sum
  const auto sizes = at::ones({me.world()}, at::kLong);
  const auto sum = [&](double first, double rest, at::ScalarType type) {
    const auto y = at::full({me.world()}, me.rank() == 0 ? first : rest, type);
    return reduce_scatter(y, sizes, {.group = me}).item<double>();
  };
  expect(sum(1, std::pow(2.0, -24), at::kFloat) == 1, "float32 adds from rank 0 on");
  expect(sum(2048, 1, at::kHalf) == 2047 + me.world(), "float16 is summed in float32, rounded once");
  expect(sum(256, 1, at::kBFloat16) == 255 + me.world(), "bfloat16 is summed in float32, rounded once");
}

std::uint64_t fnv(std::uint64_t hash, const at::Tensor& x) {
  const auto plain = x.contiguous();
  const auto* bytes = static_cast<const unsigned char*>(plain.const_data_ptr());
  for (std::size_t i = 0; i < plain.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string digest_of_sums(const group& me) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto take = [&](const ragged& now, reduce_op op) {
    const auto mine = reduce_scatter(now.whole(me.rank()), now.sizes_tensor(), {.dim = 1, .op = op, .group = me});
    hash = fnv(hash, all_gather(mine, {.dim = 1, .group = me}).tensor);
  };
  for (const std::int64_t width : {50, 9001}) {  // that ride along with their headers, and that do not
    for (const auto type : integers) take(sum_of(type, me.world(), width), reduce_op::sum);
    for (const auto type : floats) {
      for (const auto op : {reduce_op::sum, reduce_op::mean}) take(sum_of(type, me.world(), width), op);
    }
  }
  return std::to_string(hash);
}

case_list dtype_cases() {
  return {{"dtype/every_type_is_gathered", every_type_is_gathered},
          {"dtype/every_type_at_once", every_type_at_once},
          {"dtype/any_bytes_are_gathered", any_bytes_are_gathered},
          {"dtype/sums_are_right_to_the_bit", sums_are_right_to_the_bit},
          {"dtype/order_and_rounding", order_and_rounding_are_those_of_the_contract}};
}

}  // namespace sheaf::test
