// SPDX-License-Identifier: MIT
// Several tensors in one call: what each gets is what a call of its own would give, to the bit, and back in one call.
#include <functional>

#include "cpp/cases.hpp"
#include "cpp/kinds.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

// Floats of several widths and modes beside a mask and ids, along different dims, with sizes of different patterns.
kinds mixed(int world, std::int64_t width = 1) {
  const auto patterns = size_patterns(world);
  const auto sizes = [&](std::size_t i) { return patterns[i % patterns.size()]; };
  return {{{.sizes = sizes(1), .dim = 0, .shape = {0, 3 * width}, .seed = 1}},
          {{.sizes = sizes(1), .dim = 0, .shape = {0}, .type = at::kBool, .seed = 2}},
          {{.sizes = sizes(2), .dim = 1, .shape = {2, 0, 5 * width}, .type = at::kHalf, .seed = 3}, gradient::mean},
          {{.sizes = sizes(3), .dim = -1, .shape = {3, 0}, .type = at::kLong, .seed = 4}, gradient::mean},
          {{.sizes = sizes(1), .dim = -2, .shape = {0, width}, .type = at::kComplexFloat, .seed = 5}, gradient::own},
          {{.sizes = sizes(4), .dim = 0, .shape = {0, 1}, .type = at::kBFloat16, .seed = 6}}};
}

std::vector<at::Tensor> each(const kinds& all, const std::function<at::Tensor(const kind&)>& of) {
  std::vector<at::Tensor> tensors;
  for (const auto& one : all) tensors.push_back(of(one));
  return tensors;
}

void check_gather(const group& me, const kinds& all) {
  for (const int given : {0, 1, 2}) {
    const auto x = each(all, [&](const kind& one) {
      const auto block = one.now.block(me.rank());
      return one.records() ? leaf(block) : block;
    });
    const auto results = all_gather_coalesced(x, options_of(me, all, given));
    std::vector<at::Tensor> ends, inputs, upstream;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto text = "tensor " + std::to_string(i) + ", " + all[i].now.text();
      expect_equal(results[i].tensor, all[i].now.gathered(), text);
      expect_equal(results[i].sizes, all[i].now.sizes_tensor(), "sizes of " + text);
      expect(results[i].tensor.is_contiguous(), "contiguous: " + text);
      expect(results[i].tensor.requires_grad() == all[i].records(), "recorded: " + text);
      if (!all[i].records()) continue;
      ends.push_back(results[i].tensor);
      inputs.push_back(x[i]);
      upstream.push_back(all[i].now.whole(me.rank()));
    }
    const auto grads = torch::autograd::grad(ends, inputs, upstream);
    for (std::size_t i = 0, next = 0; i < all.size(); ++i) {
      if (all[i].records()) expect_equal(grads[next++], all[i].upstream(me.rank()), "gradient, " + all[i].now.text());
    }
  }
}

void mixed_tensors(const group& me) { check_gather(me, mixed(me.world())); }

// Packed in one message, and each by its own.
void large_tensors(const group& me) {
  check_gather(me, mixed(me.world(), 300));
  check_gather(me, mixed(me.world(), 4'000));
}

void check_scatter(const group& me, std::int64_t width) {
  const auto all = mixed(me.world(), width);
  kinds summed;
  for (const auto& one : all) {
    if (one.now.type != at::kBool) summed.push_back(one);
  }
  std::vector<std::int64_t> dims;
  std::vector<reduce_op> ops;
  for (const auto& one : summed) {
    dims.push_back(one.now.dim);
    ops.push_back(one.mode == gradient::mean && one.records() ? reduce_op::mean : reduce_op::sum);
  }
  const auto y = each(summed, [&](const kind& one) {
    const auto whole = one.now.whole(me.rank());
    return one.records() ? leaf(whole) : whole;
  });
  const auto sizes = each(summed, [](const kind& one) { return one.now.sizes_tensor(); });
  const auto mine = reduce_scatter_coalesced(y, sizes, {.dim = dims, .op = ops, .group = me});
  std::vector<at::Tensor> ends, inputs, upstream, want;
  for (std::size_t i = 0; i < summed.size(); ++i) {
    const auto& now = summed[i].now;
    const bool mean = ops[i] == reduce_op::mean;
    expect_equal(mine[i], now.rows_of(mean ? now.averaged() : now.summed(), me.rank()), "sum, " + now.text());
    if (!summed[i].records()) continue;
    ends.push_back(mine[i]);
    inputs.push_back(y[i]);
    upstream.push_back(now.block(me.rank()));
    want.push_back(mean ? divided(now.gathered(), me.world()) : now.gathered());
  }
  const auto grads = torch::autograd::grad(ends, inputs, upstream);
  for (std::size_t i = 0; i < grads.size(); ++i) expect_equal(grads[i], want[i], "gradient of a sum");
}

void sums(const group& me) {
  for (const std::int64_t width : {1, 300, 4'000}) check_scatter(me, width);
}

// Against calls of one tensor each, whose derivatives have cases of their own.
void second_derivatives(const group& me) {
  const auto patterns = size_patterns(me.world());
  const kinds all = {{{.sizes = patterns[1], .dim = 0, .shape = {0, 2}, .seed = 1}},
                     {{.sizes = patterns[2], .dim = 1, .shape = {3, 0}, .seed = 2}, gradient::mean},
                     {{.sizes = patterns[1], .dim = 0, .shape = {0}, .seed = 3}, gradient::own}};
  const auto one = at::ones({}, there(at::kDouble));
  std::vector<std::vector<at::Tensor>> seconds;
  for (const bool together : {true, false}) {
    const auto x = each(all, [&](const kind& of) { return leaf(of.now.block(me.rank()) / 100); });
    std::vector<at::Tensor> y;
    if (together) {
      for (auto& result : all_gather_coalesced(x, options_of(me, all, 0))) y.push_back(result.tensor);
    } else {
      for (std::size_t i = 0; i < all.size(); ++i) {
        y.push_back(all_gather(x[i], {.dim = all[i].now.dim, .grad = all[i].mode, .group = me}).tensor);
      }
    }
    auto loss = at::zeros({}, there(at::kDouble));
    for (std::size_t i = 0; i < all.size(); ++i) loss = loss + (all[i].now.whole(me.rank()) * y[i].pow(3)).sum();
    const auto firsts = torch::autograd::grad({loss}, x, {one}, true, true);
    auto probed = at::zeros({}, there(at::kDouble));
    for (std::size_t i = 0; i < all.size(); ++i) probed = probed + (firsts[i] * all[i].now.block(me.rank())).sum();
    seconds.push_back(torch::autograd::grad({probed}, x, {one}));
  }
  for (std::size_t i = 0; i < all.size(); ++i) expect_close(seconds[0][i], seconds[1][i], "second derivative");
}

// Rank r needs the gradient of tensor r alone; all take part for all of those.
void ranks_need_different_gradients(const group& me) {
  std::vector<at::Tensor> x;
  for (int i = 0; i <= me.world(); ++i) x.push_back(at::ones({2}, at::kDouble).requires_grad_(i == me.rank()));
  const auto results = all_gather_coalesced(x, {.group = me});
  auto loss = at::zeros({}, there(at::kDouble));
  for (int i = 0; i < me.world(); ++i) loss = loss + (results[i].tensor * (me.rank() + 1)).sum();
  expect(!results.back().tensor.requires_grad(), "nobody needs the last one's gradient");
  loss.backward();
  const auto total = me.world() * (me.world() + 1) / 2;
  expect_equal(x[me.rank()].grad(), at::full({2}, static_cast<double>(total), at::kDouble), "gradient");
}

// Seven ranks and 64 tensors: headers have no room for all sizes, and compare a digest of them.
void more_sizes_than_a_frame_holds(const group& of) {
  if (of.world() > 1) return;
  spawn(7, [](const group& me) {
    std::vector<at::Tensor> x;
    std::vector<std::optional<at::Tensor>> sizes;
    kinds all;
    for (int i = 0; i < 64; ++i) {
      all.push_back({{.sizes = extents(7, 1 + i % 3), .dim = 0, .shape = {0, 2}, .seed = 100u + i}});
      x.push_back(leaf(all.back().now.block(me.rank())));
      sizes.emplace_back(all.back().now.sizes_tensor());
    }
    const auto results = all_gather_coalesced(x, {.sizes = sizes, .group = me});
    std::vector<at::Tensor> ends, upstream;
    for (int i = 0; i < 64; ++i) {
      expect_equal(results[i].tensor, all[i].now.gathered(), "one of 64");
      ends.push_back(results[i].tensor);
      upstream.push_back(all[i].now.whole(me.rank()));
    }
    const auto grads = torch::autograd::grad(ends, x, upstream);
    for (int i = 0; i < 64; ++i) expect_equal(grads[i], all[i].upstream(me.rank()), "gradient of one of 64");

    sizes[5].reset();  // the rest is compared all the same
    auto other = sizes[9]->clone();
    other[me.rank() == 0 ? 1 : 0].add_(1);
    const auto some = all_gather_coalesced(x, {.sizes = sizes, .group = me});
    expect_equal(some[5].tensor, all[5].now.gathered(), "learned beside 63 given");
    if (me.rank() == 3) sizes[9] = other;
    const auto text = error_of<c10::ValueError>([&] { all_gather_coalesced(x, {.sizes = sizes, .group = me}); },
                                                "another size on rank 3");
    expect_contains(text, "ranks disagree on sizes: sizes with digest [");
    expect_same_everywhere(me, text);
  });
}

template <class Odd, class Rest>
void expect_error(const group& me, const std::string& says, Odd&& odd, Rest&& rest) {
  for (int chosen = 0; chosen < me.world(); ++chosen) {
    if (me.world() == 1) continue;
    const auto text = error_of<c10::ValueError>([&] { me.rank() == chosen ? odd() : rest(); }, says);
    expect_contains(text, says);
    expect_same_everywhere(me, text);
  }
}

// Two calls in an order that others turn round: both are refused, by all ranks.
template <class First, class Second>
auto both(const First& first, const Second& second) {
  return [&] {
    error_of<c10::ValueError>(first, "the first of two");
    second();
  };
}

void disagreements(const group& me) {
  const auto x = at::ones({3, 3});
  const auto ids = at::ones({4}, at::kLong);
  for (const bool started : {false, true}) {
    const auto call = [&](const std::vector<at::Tensor>& tensors, const all_gather_coalesced_options& options) {
      started ? all_gather_coalesced_async(tensors, options).wait() : all_gather_coalesced(tensors, options);
    };
    const auto gather = [&](const std::vector<at::Tensor>& tensors, gradient second = gradient::sum) {
      std::vector<gradient> modes(tensors.size(), gradient::sum);
      if (modes.size() > 1) modes[1] = second;
      call(tensors, {.grad = modes, .group = me});
    };
    const auto rest = [&] { gather({x, ids}); };
    const auto swapped = [&] { gather({ids, x}); };
    const auto along = [&](std::vector<std::int64_t> dims) {
      return [&, dims] { call({x, ids}, {.dim = dims, .group = me}); };
    };
    const auto sized = at::full({me.world()}, 4, at::kLong);
    expect_error(me, "ranks disagree on the number of tensors", [&] { gather({x}); }, rest);
    expect_error(me, "ranks disagree on dtype of tensor 1", [&] { gather({x, ids.to(at::kInt)}); }, rest);
    expect_error(me, "ranks disagree on the size of dim 1 of tensor 0", [&] { gather({at::ones({2, 4}), ids}); }, rest);
    expect_error(me, "ranks disagree on dim of tensor 0", along({1, 0}), rest);
    expect_error(me, "ranks disagree on gradient mode of tensor 1", [&] { gather({x, ids}, gradient::own); }, rest);
    expect_error(me, "ranks disagree on op", [&] { all_gather(x, {.group = me}); }, rest);
    expect_error(me, "ranks disagree on ndim of tensor 0", both(swapped, rest), both(rest, swapped));
    expect_error(
        me, "ranks disagree on sizes of tensor 1",
        [&] { call({x, ids}, {.sizes = {std::nullopt, sized}, .group = me}); }, rest);
    expect_error(me, "refuses: tensor 1: dim must be from -1 to 0, got 2", along({0, 2}), rest);
    expect_error(me, "refuses: tensor 1: the tensor is undefined", [&] { gather({x, at::Tensor()}); }, rest);
    expect_error(me, "refuses: no tensors were given", [&] { gather({}); }, rest);
    expect_error(me, "refuses: dim: expected one for each of 2 tensors, got 3", along({0, 0, 0}), rest);
  }
}

void sums_that_disagree(const group& me) {
  const auto sizes = at::full({me.world()}, 2, at::kLong);
  const auto rows = 2 * me.world();
  const auto y = at::ones({rows, 3}), wide = at::ones({rows, 4}), square = at::ones({rows, rows});
  for (const bool started : {false, true}) {
    const auto sum = [&](std::vector<at::Tensor> tensors, per_tensor<std::int64_t> dim = 0,
                         reduce_op op = reduce_op::sum) {
      const reduce_scatter_coalesced_options options{.dim = dim, .op = op, .group = me};
      started ? reduce_scatter_coalesced_async(tensors, sizes, options).wait()
              : reduce_scatter_coalesced(tensors, sizes, options);
    };
    const auto rest = [&] { sum({y, y}); };
    const auto other = [&] { sum({y, wide}); };
    const auto gather = [&] { all_gather_coalesced({y, y}, {.group = me}); };
    expect_error(me, "ranks disagree on the number of tensors", [&] { sum({y}); }, rest);
    expect_error(me, "ranks disagree on dtype of tensor 1", [&] { sum({y, y.to(at::kDouble)}); }, rest);
    expect_error(me, "ranks disagree on the size of dim 1 of tensor 1", other, rest);
    expect_error(me, "ranks disagree on dim of tensor 1", [&] { sum({y, square}, {0, 1}); }, [&] { sum({y, square}); });
    expect_error(me, "ranks disagree on reduction of tensor 0", [&] { sum({y, y}, 0, reduce_op::mean); }, rest);
    expect_error(me, "ranks disagree on op", gather, rest);
    expect_error(me, "ranks disagree on the size of dim 1 of tensor 1", both(other, rest), both(rest, other));
    expect_error(me, "ranks disagree on op", both(gather, rest), both(rest, gather));
    expect_error(me, "refuses: tensor 0: dim must be from -2 to 1, got 2", [&] { sum({y, y}, 2); }, rest);
  }
}

}  // namespace

case_list coalesced_cases() {
  return {{"coalesced/mixed_tensors", mixed_tensors},
          {"coalesced/large_tensors", large_tensors},
          {"coalesced/sums", sums},
          {"coalesced/second_derivatives", second_derivatives},
          {"coalesced/ranks_need_different_gradients", ranks_need_different_gradients},
          {"coalesced/more_sizes_than_a_frame_holds", more_sizes_than_a_frame_holds},
          {"coalesced/disagreements", disagreements},
          {"coalesced/sums_that_disagree", sums_that_disagree}};
}

}  // namespace sheaf::test
