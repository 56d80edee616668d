// SPDX-License-Identifier: MIT
// The padded helper's functions under their names: value and gradient of each.
#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

void is_distributed(const group& me) {
  expect(compat::is_distributed(me) == (me.world() > 1), "distributed with more than one rank");
}

void pad_dim_to(const group&) {
  const auto x = leaf(noise({2, 3, 4}, 1));
  for (const std::int64_t dim : {0, 1, 2, -1, -2, -3}) {
    const auto padded = compat::pad_dim_to(x, 6, dim);
    auto want_shape = x.sizes().vec();
    want_shape[dim < 0 ? dim + 3 : dim] = 6;
    auto want = at::zeros(want_shape, at::kDouble);
    want.narrow(dim, 0, x.size(dim)).copy_(x.detach());
    expect_equal(padded, want, "padded along " + std::to_string(dim));
    const auto upstream = noise(want_shape, 2);
    expect_equal(grad_of(padded, x, upstream), upstream.narrow(dim, 0, x.size(dim)).contiguous(), "its gradient");
  }
}

void all_gather_same_dim(const group& me) {
  for (const extents& shape : {extents{}, extents{3}, extents{2, 0}, extents{2, 3, 40}}) {
    const auto x = leaf(noise(shape, me.rank()));
    const auto all = compat::all_gather_same_dim(x, me);
    expect(static_cast<int>(all.size()) == me.world(), "one tensor per rank");
    for (int rank = 0; rank < me.world(); ++rank) {
      expect_equal(all[rank], noise(shape, rank), "rank " + std::to_string(rank) + "'s tensor");
      expect(!all[rank].requires_grad() && !all[rank].is_alias_of(x), "without a gradient, in memory of its own");
    }
  }
}

void gather_sizes(const group& me) {
  for (const std::int64_t dim : {0, 1, -1}) {
    ragged now{.sizes = extents(me.world(), 2), .dim = dim};
    now.sizes[0] = 0;
    expect_equal(compat::gather_sizes(now.block(me.rank()), dim, me), now.sizes_tensor(), "sizes");
  }
}

void has_only_one_value(const group&) {
  const auto no = compat::has_only_one_value(at::tensor({3, 3, 4}));
  expect(no.dim() == 0 && no.scalar_type() == at::kBool && !no.item<bool>(), "two values");
  expect(compat::has_only_one_value(at::tensor({3, 3, 3})).item<bool>(), "one value");
}

void all_gather_variable_dim(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      const ragged now{.sizes = sizes, .dim = dim};
      const auto x = leaf(now.block(me.rank()));
      const auto [learned, said] = compat::all_gather_variable_dim(x, dim, std::nullopt, me);
      expect_equal(learned, now.gathered(), "learned, " + now.text());
      expect_equal(said, now.sizes_tensor(), "sizes, " + now.text());
      const auto [given, same] = compat::all_gather_variable_dim(x, dim, now.sizes_tensor(), me);
      expect_equal(given, now.gathered(), "sizes given, " + now.text());
      expect(!learned.requires_grad() && !given.requires_grad(), "without a gradient");
      expect(!learned.is_alias_of(x) && !given.is_alias_of(x), "in memory of their own");
    }
  }
}

void all_gather_with_its_gradient(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    const ragged now{.sizes = sizes, .dim = -2};
    for (const bool all_reduce : {false, true}) {
      for (const bool given : {false, true}) {
        const compat::AllGather gather(-2, all_reduce, me);
        const auto x = leaf(now.block(me.rank()));
        const auto [y, said] = gather(x, now.sizes_if(given));
        expect_equal(y, now.gathered(), now.text());
        expect(said.has_value() == (me.world() > 1), "sizes where there is somebody to gather from");
        if (said) expect_equal(*said, now.sizes_tensor(), "sizes, " + now.text());
        const auto upstream = all_reduce ? now.summed() : now.whole(me.rank());
        const auto want = now.rows_of(upstream, me.rank());
        expect_equal(grad_of(y, x, now.whole(me.rank())), want, "gradient, " + now.text());
      }
    }
  }
}

void split_by_rank(const group& me) {
  std::vector<at::Tensor> parts;
  extents rows;
  for (int rank = 0; rank < me.world(); ++rank) {
    rows.push_back(rank + 1);
    parts.push_back(leaf(noise({rank + 1, 2}, rank)));
  }
  const auto [own, sizes] = compat::split_by_rank(parts, me);
  expect_equal(own, noise({me.rank() + 1, 2}, me.rank()), "the own entry");
  expect_equal(sizes, at::tensor(rows, at::kLong), "the entries' rows");
  expect_equal(grad_of(own, parts[me.rank()], noise({me.rank() + 1, 2}, 9)), noise({me.rank() + 1, 2}, 9), "gradient");

  const auto stacked = leaf(noise({me.world(), 3, 2}, 5));
  const auto [slice, all] = compat::split_by_rank(stacked, me);
  expect_equal(slice, stacked.detach()[me.rank()], "the own slice");
  expect_equal(all, at::full({me.world()}, 3, at::kLong), "every slice's rows");
  auto want = at::zeros_like(stacked);
  want[me.rank()].copy_(noise({3, 2}, 6));
  expect_equal(grad_of(slice, stacked, noise({3, 2}, 6)), want, "gradient of a slice");
}

}  // namespace

case_list compat_cases() {
  return {{"compat/is_distributed", is_distributed},
          {"compat/pad_dim_to", pad_dim_to},
          {"compat/all_gather_same_dim", all_gather_same_dim},
          {"compat/gather_sizes", gather_sizes},
          {"compat/has_only_one_value", has_only_one_value},
          {"compat/all_gather_variable_dim", all_gather_variable_dim},
          {"compat/all_gather_with_its_gradient", all_gather_with_its_gradient},
          {"compat/split_by_rank", split_by_rank}};
}

}  // namespace sheaf::test
