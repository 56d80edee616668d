// SPDX-License-Identifier: MIT
// reduce_scatter: values to the bit and gradients, for sums and means.
#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

constexpr reduce_op both_ops[] = {reduce_op::sum, reduce_op::mean};

at::Tensor truth(const ragged& now, reduce_op op, int rank) {
  return now.rows_of(op == reduce_op::mean ? now.averaged() : now.summed(), rank);
}

void check(const group& me, const ragged& now, const at::Tensor& y, const std::string& what) {
  for (const auto op : both_ops) {
    const auto text = what + (op == reduce_op::mean ? " mean, " : " sum, ") + now.text();
    const auto mine = reduce_scatter(y, now.sizes_tensor(), {.dim = now.dim, .op = op, .group = me});
    expect_equal(mine, truth(now, op, me.rank()), text);
    expect(mine.is_contiguous(), "contiguous: " + text);
  }
}

void every_pattern_and_dim(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, 2, -1, -2, -3}) {
      const ragged now{.sizes = sizes, .dim = dim};
      check(me, now, now.whole(me.rank()), "contiguous");
    }
  }
}

// Several pieces of a sum a rank, and one rank with all of them.
void many_pieces(const group& me) {
  for (int heavy = 0; heavy < me.world(); ++heavy) {
    ragged now{.sizes = extents(me.world(), 1), .dim = heavy % 2, .shape = {3, 3, 1021}, .type = at::kFloat};
    now.sizes[heavy] = heavy == 0 ? 300 : 64;
    check(me, now, now.whole(me.rank()), "heavy");
  }
}

void inputs_of_any_layout(const group& me) {
  for (const std::int64_t dim : {0, 1, -1}) {
    ragged now{.sizes = extents(me.world(), 2), .dim = dim};
    now.sizes[0] = 3;
    const auto y = now.whole(me.rank());
    check(me, now, y.transpose(0, 2).contiguous().transpose(0, 2), "transposed");
    check(me, now, at::stack({y, y + 1}, -1).select(-1, 0), "every other element");
    ragged image = now;
    image.shape = {2, 3, 4, 5};
    check(me, image, image.whole(me.rank()).contiguous(at::MemoryFormat::ChannelsLast), "channels last");
  }
}

// Rank r brings the same row of one value, and no memory for more.
void expanded_input(const group& me) {
  ragged now{.sizes = extents(me.world(), 2)};
  std::vector<at::Tensor> wholes;
  for (int rank = 0; rank < me.world(); ++rank)
    wholes.push_back(noise({1, 3, 1}, rank).expand(now.shape_with(now.rows())));
  const auto mine = reduce_scatter(wholes[me.rank()], now.sizes_tensor(), {.group = me});
  expect_equal(mine, now.rows_of(sum_truth(wholes, false), me.rank()), "expanded");
}

void input_is_left_alone(const group& me) {
  const ragged now{.sizes = extents(me.world(), 3)};
  const auto y = now.whole(me.rank());
  const auto mine = reduce_scatter(y, now.sizes_tensor(), {.group = me});
  if (me.world() > 1) {
    expect(!mine.is_alias_of(y), "the result does not alias the input");
    mine.zero_();
  }
  expect_equal(y, now.whole(me.rank()), "the input after the result was overwritten");
}

// The gradient of a sum is everybody's upstream, in rank order and the same on all ranks; of a mean, that divided.
void gradient_is_a_gather(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      const ragged now{.sizes = sizes, .dim = dim};
      for (const auto op : both_ops) {
        const auto y = leaf(now.whole(me.rank()));
        const auto mine = reduce_scatter(y, now.sizes_tensor(), {.dim = dim, .op = op, .group = me});
        const auto upstream = now.block(me.rank());
        const auto got = grad_of(mine, y, upstream);
        const auto want = op == reduce_op::mean ? divided(now.gathered(), me.world()) : now.gathered();
        expect_equal(got, want, "gradient, " + now.text());
        expect_equal(upstream, now.block(me.rank()), "the incoming gradient is as it was");
      }
    }
  }
}

void expanded_gradient(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  std::vector<at::Tensor> upstream;
  for (int rank = 0; rank < me.world(); ++rank) {
    upstream.push_back(noise({1}, 70 + rank).expand(now.shape_with(now.sizes[rank])));
  }
  const auto y = leaf(now.whole(me.rank()));
  const auto mine = reduce_scatter(y, now.sizes_tensor(), {.group = me});
  expect_equal(grad_of(mine, y, upstream[me.rank()]), now.joined(upstream), "gradient of an expanded upstream");
  const auto untouched = noise({1}, 70 + me.rank()).expand(now.shape_with(now.sizes[me.rank()]));
  expect_equal(upstream[me.rank()], untouched, "the expanded upstream is as it was");
}

}  // namespace

case_list reduce_scatter_cases() {
  return {{"reduce_scatter/every_pattern_and_dim", every_pattern_and_dim},
          {"reduce_scatter/many_pieces", many_pieces},
          {"reduce_scatter/inputs_of_any_layout", inputs_of_any_layout},
          {"reduce_scatter/expanded_input", expanded_input},
          {"reduce_scatter/input_is_left_alone", input_is_left_alone},
          {"reduce_scatter/gradient_is_a_gather", gradient_is_a_gather},
          {"reduce_scatter/expanded_gradient", expanded_gradient}};
}

}  // namespace sheaf::test
