// SPDX-License-Identifier: MIT
// One rank does another thing than the rest: all raise the same text, naming ranks and values, and go on together.
#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

std::string rank_text(int rank) { return "on rank " + std::to_string(rank); }

// Each rank in turn is the odd one. `value` is what the error must say it has.
template <class Odd, class Rest>
void expect_disagreement(const group& me, const std::string& on, const std::string& value, Odd&& odd, Rest&& rest) {
  for (int chosen = 0; chosen < me.world() && me.world() > 1; ++chosen) {
    const auto text = error_of<c10::ValueError>([&] { me.rank() == chosen ? odd() : rest(); }, "disagreement on " + on);
    expect_contains(text, "ranks disagree on " + on + ": ");
    expect_contains(text, value + " " + rank_text(chosen));
    expect_same_everywhere(me, text);
  }
}

void gather(const group& me, const at::Tensor& x, std::int64_t dim = 0, gradient mode = gradient::sum) {
  all_gather(x, {.dim = dim, .grad = mode, .group = me});
}

void on_dtype(const group& me) {
  const auto x = at::ones({2, 3});
  expect_disagreement(me, "dtype", "int32", [&] { gather(me, x.to(at::kInt)); }, [&] { gather(me, x); });
  expect_disagreement(me, "dtype", "bfloat16", [&] { gather(me, x.to(at::kBFloat16)); }, [&] { gather(me, x); });
}

void on_ndim(const group& me) {
  expect_disagreement(me, "ndim", "1", [&] { gather(me, at::ones({6})); }, [&] { gather(me, at::ones({2, 3})); });
}

void on_another_dims_size(const group& me) {
  const auto odd = [&] { gather(me, at::ones({2, 3, 5})); };
  expect_disagreement(me, "the size of dim 2", "5", odd, [&] { gather(me, at::ones({2, 3, 4})); });
}

void on_dim(const group& me) {
  const auto x = at::ones({3, 3});
  expect_disagreement(me, "dim", "1", [&] { gather(me, x, -1); }, [&] { gather(me, x, 0); });
}

void on_gradient_mode(const group& me) {
  const auto x = at::ones({3, 3});
  const auto odd = [&] { gather(me, x, 0, gradient::own); };
  expect_disagreement(me, "gradient mode", "own", odd, [&] { gather(me, x, 0, gradient::mean); });
}

void on_op(const group& me) {
  const auto x = at::ones({3, 3});
  expect_disagreement(me, "op", "gather_sizes", [&] { gather_sizes(x, {.group = me}); }, [&] { gather(me, x); });
}

// Small tensors ride along with their headers, which are compared although sizes are given.
void on_a_reduction(const group& me) {
  const auto rows = 2 * me.world();
  const auto even = at::full({me.world()}, 2, at::kLong);
  const auto reduce = [&](const at::Tensor& y, std::int64_t dim = 0) {
    return [&, y, dim] { reduce_scatter(y, even, {.dim = dim, .group = me}); };
  };
  const auto y = at::ones({rows, rows});
  expect_disagreement(me, "dtype", "int32", reduce(y.to(at::kInt)), reduce(y));
  expect_disagreement(me, "ndim", "1", reduce(at::ones({rows})), reduce(y));
  expect_disagreement(me, "the size of dim 1", "9", reduce(at::ones({rows, 9})), reduce(at::ones({rows, 8})));
  expect_disagreement(me, "dim", "1", reduce(y, -1), reduce(y, 0));
  expect_disagreement(me, "op", "all_gather", [&] { gather(me, y); }, reduce(y));
  auto other = at::zeros({me.world()}, at::kLong);
  other[0] = rows;
  std::string shown = "[" + std::to_string(rows);
  for (int rank = 1; rank < me.world(); ++rank) shown += ", 0";
  expect_disagreement(me, "sizes", shown + "]", [&] { reduce_scatter(y, other, {.group = me}); }, reduce(y));
}

// The first call raises on every rank alike, and the second is made by none.
void in_another_order(const group& me) {
  const auto y = at::ones({2 * me.world(), 3});
  const auto sizes = at::full({me.world()}, 2, at::kLong);
  const auto floats = [&] { gather(me, y); };
  const auto integers = [&] { gather(me, y.to(at::kLong)); };
  const auto sums = [&] { reduce_scatter(y, sizes, {.group = me}); };
  const auto both = [](const auto& first, const auto& second) {
    return [&] {
      first();
      second();
    };
  };
  expect_disagreement(me, "dtype", "int64", both(integers, floats), both(floats, integers));
  expect_disagreement(me, "op", "reduce_scatter", both(sums, floats), both(floats, sums));
}

// Blocks that are too long for the header's frame are never sent.
void with_long_blocks(const group& me) {
  const auto x = at::ones({1000, 3});
  expect_disagreement(me, "dtype", "float64", [&] { gather(me, x.to(at::kDouble)); }, [&] { gather(me, x); });
}

// The backward of `sum` needs all ranks; one under no_grad would never come.
void on_recording(const group& me) {
  for (int chosen = 0; chosen < me.world() && me.world() > 1; ++chosen) {
    const auto text = error_of<c10::ValueError>(
        [&] {
          const at::AutoGradMode recording(me.rank() != chosen);
          gather(me, at::ones({2}).requires_grad_());
        },
        "no_grad on one rank");
    expect_contains(text, "rank " + std::to_string(chosen) + " is under no_grad");
    expect_same_everywhere(me, text);
  }
}

// What ranks compare where sizes are given, if they compare at all.
void where_headers_are_asked_for(const group& me) {
  if (!headers_are_compared(me)) return;
  const auto sizes = at::full({me.world()}, 2, at::kLong);
  const auto ones = at::ones({2, 2});
  const auto whole = at::ones({2 * me.world(), 2});
  const auto sized = [&](const at::Tensor& x, const at::Tensor& all) { all_gather(x, {.sizes = all, .group = me}); };
  const auto reduce = [&](const at::Tensor& y, reduce_op op) { reduce_scatter(y, sizes, {.op = op, .group = me}); };

  expect_disagreement(me, "dtype", "int64", [&] { sized(ones.to(at::kLong), sizes); }, [&] { sized(ones, sizes); });
  expect_disagreement(
      me, "dtype", "float64", [&] { reduce(whole.to(at::kDouble), reduce_op::sum); },
      [&] { reduce(whole, reduce_op::sum); });
  expect_disagreement(
      me, "reduction", "mean", [&] { reduce(whole, reduce_op::mean); }, [&] { reduce(whole, reduce_op::sum); });
  expect_disagreement(me, "op", "all_gather", [&] { sized(ones, sizes); }, [&] { reduce(whole, reduce_op::sum); });
  expect_disagreement(me, "sizes", "to be learned", [&] { gather(me, ones); }, [&] { sized(ones, sizes); });

  for (int chosen = 0; chosen < me.world() && me.world() > 1; ++chosen) {
    auto theirs = sizes.clone();
    if (me.rank() == chosen) theirs[(chosen + 1) % me.world()] = 7;
    const auto text = error_of<c10::ValueError>([&] { sized(ones, theirs); }, "other sizes on one rank");
    expect_contains(text, "ranks disagree on sizes: ");
    expect_same_everywhere(me, text);
  }
}

}  // namespace

case_list disagreement_cases() {
  return {{"disagreement/on_dtype", on_dtype},
          {"disagreement/on_ndim", on_ndim},
          {"disagreement/on_another_dims_size", on_another_dims_size},
          {"disagreement/on_dim", on_dim},
          {"disagreement/on_gradient_mode", on_gradient_mode},
          {"disagreement/on_op", on_op},
          {"disagreement/on_a_reduction", on_a_reduction},
          {"disagreement/in_another_order", in_another_order},
          {"disagreement/with_long_blocks", with_long_blocks},
          {"disagreement/on_recording", on_recording},
          {"disagreement/where_headers_are_asked_for", where_headers_are_asked_for}};
}

}  // namespace sheaf::test
