// SPDX-License-Identifier: MIT
// What rank r receives for an upstream gradient that is another on every rank, in each mode.
#include <cmath>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

at::Tensor truth(const ragged& now, gradient mode, int rank) {
  switch (mode) {
    case gradient::sum:
      return now.rows_of(now.summed(), rank);
    case gradient::mean:
      return now.rows_of(now.averaged(), rank);
    default:
      return now.rows_of(now.whole(rank), rank);
  }
}

at::Tensor gather(const group& me, const ragged& now, const at::Tensor& x, gradient mode, bool given) {
  const auto sizes = now.sizes_if(given);
  return all_gather(x, {.dim = now.dim, .sizes = sizes, .grad = mode, .group = me}).tensor;
}

void check(const group& me, const ragged& now, const at::Tensor& input, const at::Tensor& upstream) {
  for (const auto mode : all_modes) {
    for (const bool given : {false, true}) {
      const auto text = std::string(name_of(mode)) + (given ? ", sizes given, " : ", learned, ") + now.text();
      const auto x = leaf(input);
      const auto y = gather(me, now, x, mode, given);
      expect(y.requires_grad(), "the result records gradients: " + text);
      const auto before = upstream.clone();
      const auto got = grad_of(y, x, upstream);
      expect_equal(got, truth(now, mode, me.rank()), text);
      expect_equal(upstream, before, "the incoming gradient is as it was: " + text);
      expect(me.world() == 1 || !got.is_alias_of(upstream), "a gradient of its own: " + text);
    }
  }
}

void every_pattern_and_dim(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      const ragged now{.sizes = sizes, .dim = dim};
      check(me, now, now.block(me.rank()), now.whole(me.rank()));
    }
  }
}

void every_differentiable_type(const group& me) {
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kComplexFloat, at::kComplexDouble}) {
    ragged now{.sizes = extents(me.world(), 3), .dim = 1, .type = type};
    now.sizes[0] = 1;
    check(me, now, now.block(me.rank()), now.whole(me.rank()));
  }
}

void layouts_of_input_and_gradient(const group& me) {
  for (const std::int64_t dim : {0, 1, -1}) {
    ragged now{.sizes = extents(me.world(), 2), .dim = dim, .shape = {2, 3, 4, 5}};
    now.sizes.back() = 3;
    const auto x = now.block(me.rank());
    const auto upstream = now.whole(me.rank());
    check(me, now, x.contiguous(at::MemoryFormat::ChannelsLast), upstream.contiguous(at::MemoryFormat::ChannelsLast));
    check(me, now, x.transpose(0, 3).contiguous().transpose(0, 3),
          upstream.transpose(1, 2).contiguous().transpose(1, 2));
    check(me, now, x, at::stack({upstream, upstream}, -1).select(-1, 1));
  }
}

// One number stands for the whole gradient, as after y.sum(): writing to it would change every element at once.
void expanded_gradient_is_never_written(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  std::vector<at::Tensor> numbers;
  std::vector<at::Tensor> upstream;
  for (int rank = 0; rank < me.world(); ++rank) {
    numbers.push_back(noise({1, 1, 1}, 90 + rank));
    upstream.push_back(numbers.back().expand(now.shape_with(now.rows())));
  }
  for (const auto mode : all_modes) {
    for (const bool given : {false, true}) {
      const auto x = leaf(now.block(me.rank()));
      const auto got = grad_of(gather(me, now, x, mode, given), x, upstream[me.rank()]);
      const auto total = mode == gradient::own ? upstream[me.rank()] : sum_truth(upstream, mode == gradient::mean);
      expect_equal(got, now.rows_of(total, me.rank()), std::string("expanded upstream, ") + name_of(mode));
      expect_equal(numbers[me.rank()], noise({1, 1, 1}, 90 + me.rank()), "the number is as it was");
    }
  }
}

// The input goes two ways: the gather's gradient must not disturb the other branch, nor come twice.
void other_branches_keep_their_gradient(const group& me) {
  const ragged now{.sizes = extents(me.world(), 3)};
  const auto x = leaf(now.block(me.rank()));
  const auto y = all_gather(x, {.group = me}).tensor;
  const auto loss = (y * now.whole(me.rank())).sum() + (x * x).sum();
  const auto want = now.rows_of(now.summed(), me.rank()) + 2 * now.block(me.rank());
  expect_close(grad_of(loss, x, at::ones({}, there(at::kDouble))), want, "gather beside another branch");
}

// Only rank `chosen` needs a gradient. The others take part in its backward and discard.
void gradient_on_one_rank_only(const group& me) {
  for (int chosen = 0; chosen < me.world(); ++chosen) {
    const ragged now{.sizes = extents(me.world(), 2)};
    for (const auto mode : all_modes) {
      const bool mine = me.rank() == chosen;
      const auto x = mine ? leaf(now.block(me.rank())) : now.block(me.rank());
      const auto y = gather(me, now, x, mode, false);
      expect(y.requires_grad() == (mine || mode != gradient::own), std::string("who records, ") + name_of(mode));
      if (!y.requires_grad()) continue;
      y.backward(now.whole(me.rank()));
      if (mine) expect_equal(x.grad(), truth(now, mode, chosen), std::string("the only gradient, ") + name_of(mode));
      expect(mine || !x.grad().defined(), "no gradient where none was asked for");
    }
  }
}

void nothing_is_recorded_without_need(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  for (const bool given : {false, true}) {
    expect(!gather(me, now, now.block(me.rank()), gradient::sum, given).requires_grad(), "no input needs a gradient");
    if (me.world() == 1) continue;  // there the result is the input itself
    const at::NoGradGuard no_grad;
    expect(!gather(me, now, leaf(now.block(me.rank())), gradient::sum, given).requires_grad(), "under no_grad");
  }
}

// Rank 0 leaves out the backward of its gather and goes on: all raise the same, naming it, and go on together.
void a_rank_that_goes_on_is_named(const group& me) {
  if (me.world() == 1) return;
  const auto x = leaf(at::ones({2, 3}, there(at::kDouble)));
  for (const bool started : {false, true}) {
    const all_gather_options here{.group = me, .timeout = std::chrono::seconds(60)};
    const auto y = started ? all_gather_async(x, here).wait().tensor : all_gather(x, here).tensor;
    const auto text = error_of<c10::ValueError>(
        [&] { me.rank() == 0 ? void(gather_sizes(x, {.group = me})) : y.sum().backward(); }, "a rank that goes on");
    expect_contains(text, "ranks disagree on op: ");
    expect_contains(text, "rank 0 has left out the backward of #");
    expect_same_everywhere(me, text);
  }
}

// A rank's loss as a plain function of what all ranks gathered or reduced.
at::Tensor total(const group& me, const at::Tensor& loss) {
  return all_gather(loss.detach().reshape({1}), {.group = me}).tensor.sum();
}

// Every element of every rank's input is moved both ways, on all ranks in step, and the sum of all losses is watched.
template <class Loss>
void compare_with_differences(const group& me, const std::vector<at::Tensor>& inputs, Loss&& loss) {
  const auto x = leaf(inputs[me.rank()]);
  const auto got = grad_of(loss(x), x, at::ones({}, there(at::kDouble))).flatten();
  constexpr double step = 1e-5;
  for (int owner = 0; owner < me.world(); ++owner) {
    for (std::int64_t element = 0; element < inputs[owner].numel(); ++element) {
      const auto moved_by = [&](double by) {
        auto moved = inputs[me.rank()].clone();
        if (owner == me.rank()) moved.flatten()[element] += by;
        return total(me, loss(moved)).template item<double>();
      };
      const auto slope = (moved_by(step) - moved_by(-step)) / (2 * step);
      if (owner != me.rank()) continue;
      const auto said = got[element].template item<double>();
      expect(std::abs(said - slope) < 1e-5 * (1 + std::abs(slope)),
             "element " + std::to_string(element) + ": " + std::to_string(said) + " is " + std::to_string(slope));
    }
  }
}

void all_gather_by_differences(const group& me) {
  ragged now{.sizes = extents(me.world(), 1), .dim = 1, .shape = {2, 0}};
  now.sizes.back() = 2;
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < me.world(); ++rank) inputs.push_back(now.block(rank) / 100);
  const auto loss = [&](const at::Tensor& y) { return (y * now.whole(me.rank()) / 100).sin().sum(); };
  compare_with_differences(me, inputs,
                           [&](const at::Tensor& x) { return loss(all_gather(x, {.dim = 1, .group = me}).tensor); });
  compare_with_differences(me, inputs, [&](const at::Tensor& x) {
    const auto two = all_gather_coalesced({x, x * 2}, {.dim = 1, .group = me});
    return loss(two[0].tensor) + loss(two[1].tensor);
  });
  compare_with_differences(me, inputs, [&](const at::Tensor& x) {
    return loss(all_gather_async(x, {.dim = 1, .group = me}).wait().tensor);
  });
  compare_with_differences(me, inputs, [&](const at::Tensor& x) {
    const auto two = all_gather_coalesced_async({x, x * 2}, {.dim = 1, .group = me}).wait();
    return loss(two[0].tensor) + loss(two[1].tensor);
  });
}

void reduce_scatter_by_differences(const group& me) {
  ragged now{.sizes = extents(me.world(), 1), .dim = 1, .shape = {1, 0}};
  now.sizes.back() = 2;
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < me.world(); ++rank) inputs.push_back(now.whole(rank) / 100);
  const auto loss = [&](const at::Tensor& mine) { return (mine * now.block(me.rank()) / 100).sin().sum(); };
  compare_with_differences(me, inputs, [&](const at::Tensor& y) {
    return loss(reduce_scatter(y, now.sizes_tensor(), {.dim = 1, .group = me}));
  });
  compare_with_differences(me, inputs, [&](const at::Tensor& y) {
    const auto two = reduce_scatter_coalesced({y, y * 2}, now.sizes_tensor(), {.dim = 1, .group = me});
    return loss(two[0]) + loss(two[1]);
  });
  compare_with_differences(me, inputs, [&](const at::Tensor& y) {
    return loss(reduce_scatter_async(y, now.sizes_tensor(), {.dim = 1, .group = me}).wait());
  });
  compare_with_differences(me, inputs, [&](const at::Tensor& y) {
    const auto two = reduce_scatter_coalesced_async({y, y * 2}, now.sizes_tensor(), {.dim = 1, .group = me}).wait();
    return loss(two[0]) + loss(two[1]);
  });
}

}  // namespace

case_list gradient_cases() {
  return {{"gradient/every_pattern_and_dim", every_pattern_and_dim},
          {"gradient/every_differentiable_type", every_differentiable_type},
          {"gradient/layouts_of_input_and_gradient", layouts_of_input_and_gradient},
          {"gradient/expanded_gradient_is_never_written", expanded_gradient_is_never_written},
          {"gradient/other_branches_keep_their_gradient", other_branches_keep_their_gradient},
          {"gradient/gradient_on_one_rank_only", gradient_on_one_rank_only},
          {"gradient/nothing_is_recorded_without_need", nothing_is_recorded_without_need},
          {"gradient/a_rank_that_goes_on_is_named", a_rank_that_goes_on_is_named},
          {"gradient/all_gather_by_differences", all_gather_by_differences},
          {"gradient/reduce_scatter_by_differences", reduce_scatter_by_differences}};
}

}  // namespace sheaf::test
