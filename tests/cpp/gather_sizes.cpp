// SPDX-License-Identifier: MIT
// gather_sizes, split and offset: what one does with sizes.
#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

void sizes_of_every_rank(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      const ragged now{.sizes = sizes, .dim = dim};
      const auto got = gather_sizes(now.block(me.rank()), {.dim = dim, .group = me});
      expect_equal(got, now.sizes_tensor(), "gather_sizes, " + now.text());
      expect(got.device().is_cpu(), "sizes are on the host");
    }
  }
}

void split_gives_views_of_every_block(const group& me) {
  for (const std::int64_t dim : {0, 1, -1}) {
    ragged now{.sizes = extents(me.world(), 2), .dim = dim};
    now.sizes[0] = 0;
    const auto whole = now.gathered();
    const auto blocks = split(whole, now.sizes_tensor(), dim);
    expect(static_cast<int>(blocks.size()) == me.world(), "one block per rank");
    for (int rank = 0; rank < me.world(); ++rank) {
      expect_equal(blocks[rank], now.block(rank), "block " + std::to_string(rank));
      expect(blocks[rank].is_alias_of(whole), "a view");
    }
  }
}

// Rank 0's block is one rank's loss on all ranks: its gradient reaches it from everywhere, and nobody else.
void gradients_flow_through_split(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  const auto x = leaf(now.block(me.rank()));
  const auto [whole, sizes] = all_gather(x, {.group = me});
  const auto got = grad_of(split(whole, sizes)[0], x, now.rows_of(now.whole(me.rank()), 0));
  const auto want = me.rank() == 0 ? now.rows_of(now.summed(), 0) : at::zeros_like(now.block(me.rank()));
  expect_equal(got, want, "gradient through split");
}

void offset_is_where_the_own_rows_begin(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    const ragged now{.sizes = sizes};
    const auto first = offset(now.sizes_tensor(), me);
    const auto own = now.gathered().narrow(0, first, sizes[me.rank()]);
    expect_equal(own, now.block(me.rank()), "rows from the offset, " + now.text());
  }
}

void what_is_refused_locally(const group& me) {
  const auto whole = at::zeros({4, 2});
  const auto refused = [&](const auto& body, const std::string& text) {
    expect_contains(error_of<c10::ValueError>(body, text), text);
  };
  refused([&] { split(whole, at::tensor({1, 2}, at::kLong)); }, "add up to 3");
  refused([&] { split(whole, at::tensor({4}, at::kLong), 2); }, "dim must be from -2 to 1, got 2");
  refused([&] { offset(at::ones({me.world() + 1}, at::kLong), me); },
          "one per rank, got " + std::to_string(me.world() + 1));
  refused([&] { offset(at::full({me.world()}, -1, at::kLong), me); }, "negative");
  refused([&] { offset(at::ones({me.world()}), me); }, "integers");
}

}  // namespace

case_list gather_sizes_cases() {
  return {{"gather_sizes/sizes_of_every_rank", sizes_of_every_rank},
          {"split/views_of_every_block", split_gives_views_of_every_block},
          {"split/gradients_flow_through", gradients_flow_through_split},
          {"offset/where_the_own_rows_begin", offset_is_where_the_own_rows_begin},
          {"offset/what_is_refused", what_is_refused_locally}};
}

}  // namespace sheaf::test
