// SPDX-License-Identifier: MIT
// Started calls of several tensors give what plain ones give, to the bit, and so do their gradients.
#include <functional>
#include <string>
#include <vector>

#include "cpp/cases.hpp"
#include "cpp/kinds.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

kinds mixed(int world, std::int64_t width) {
  const auto patterns = size_patterns(world);
  const auto sizes = [&](std::size_t i) { return patterns[i % patterns.size()]; };
  return {{{.sizes = sizes(1), .dim = 0, .shape = {0, 3 * width}, .seed = 1}},
          {{.sizes = sizes(1), .dim = 0, .shape = {0}, .type = at::kLong, .seed = 2}},
          {{.sizes = sizes(2), .dim = 1, .shape = {2, 0, width}, .type = at::kHalf, .seed = 3}, gradient::mean},
          {{.sizes = sizes(3), .dim = -2, .shape = {0, width}, .type = at::kComplexFloat, .seed = 4}, gradient::own},
          {{.sizes = sizes(4), .dim = -1, .shape = {2, 0}, .seed = 5}, gradient::mean}};
}

std::vector<at::Tensor> leaves(const kinds& all, const std::function<at::Tensor(const kind&)>& of) {
  std::vector<at::Tensor> tensors;
  for (const auto& one : all) tensors.push_back(one.records() ? leaf(of(one)) : of(one));
  return tensors;
}

// First and second derivatives of a cube, where they are recorded.
std::vector<at::Tensor> derivatives(const kinds& all, const std::vector<at::Tensor>& x,
                                    const std::vector<at::Tensor>& y) {
  std::vector<at::Tensor> ends, upstream, inputs, probes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].records()) continue;
    ends.push_back(y[i] * y[i] * y[i]);
    upstream.push_back(noise(y[i].sizes(), 70 + i, all[i].now.type, 2));
    inputs.push_back(x[i]);
    probes.push_back(noise(x[i].sizes(), 80 + i, all[i].now.type, 2));
  }
  auto firsts = torch::autograd::grad(ends, inputs, upstream, true, true);
  const auto seconds = torch::autograd::grad(firsts, inputs, probes);
  firsts.insert(firsts.end(), seconds.begin(), seconds.end());
  return firsts;
}

void expect_all_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want, const char* what) {
  expect(got.size() == want.size(), what);
  for (std::size_t i = 0; i < got.size(); ++i) expect_equal(got[i], want[i], what + std::to_string(i));
}

void gathers(const group& me) {
  for (const std::int64_t width : {1, 300}) {
    const auto all = mixed(me.world(), width);
    for (const int given : {0, 1, 2}) {
      const auto options = options_of(me, all, given);
      const auto block = [&](const kind& one) { return one.now.block(me.rank()); };
      const auto x = leaves(all, block);
      const handle<std::vector<gathered>> started = all_gather_coalesced_async(x, options);
      std::vector<at::Tensor> y, ends, inputs, upstream, want;
      for (auto& one : started.wait()) y.push_back(one.tensor);
      expect(started.done() || !device().is_cpu(), "done");
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto& now = all[i].now;
        expect_equal(y[i], now.gathered(), now.text());
        expect_equal(started.wait()[i].sizes, now.sizes_tensor(), "sizes of " + now.text());
        expect(started.wait()[i].tensor.is_same(y[i]), "wait() twice");
        expect(y[i].requires_grad() == all[i].records(), "recorded: " + now.text());
        if (!all[i].records()) continue;
        ends.push_back(y[i]);
        inputs.push_back(x[i]);
        upstream.push_back(now.whole(me.rank()));
        want.push_back(now.rows_of(all[i].mode == gradient::own    ? now.whole(me.rank())
                                   : all[i].mode == gradient::mean ? now.averaged()
                                                                   : now.summed(),
                                   me.rank()));
      }
      expect_all_equal(torch::autograd::grad(ends, inputs, upstream), want, "gradient ");
    }
  }
}

void scatters(const group& me) {
  for (const std::int64_t width : {1, 300}) {
    const auto all = mixed(me.world(), width);
    std::vector<std::int64_t> dims;
    std::vector<reduce_op> ops;
    std::vector<at::Tensor> sizes, ends, inputs, upstream, want;
    for (const auto& one : all) {
      dims.push_back(one.now.dim);
      ops.push_back(one.mode == gradient::mean ? reduce_op::mean : reduce_op::sum);
      sizes.push_back(one.now.sizes_tensor());
    }
    const auto y = leaves(all, [&](const kind& one) { return one.now.whole(me.rank()); });
    const handle<std::vector<at::Tensor>> started =
        reduce_scatter_coalesced_async(y, sizes, {.dim = dims, .op = ops, .group = me});
    const auto mine = started.wait();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& now = all[i].now;
      const bool mean = ops[i] == reduce_op::mean;
      expect_equal(mine[i], now.rows_of(mean ? now.averaged() : now.summed(), me.rank()), now.text());
      expect(started.wait()[i].is_same(mine[i]), "wait() twice");
      if (!all[i].records()) continue;
      ends.push_back(mine[i]);
      inputs.push_back(y[i]);
      upstream.push_back(now.block(me.rank()));
      want.push_back(mean ? divided(now.gathered(), me.world()) : now.gathered());
    }
    expect_all_equal(torch::autograd::grad(ends, inputs, upstream), want, "gradient of a sum ");
  }
}

void second_derivatives(const group& me) {
  const auto all = mixed(me.world(), 2);
  const auto options = options_of(me, all, 0);
  const auto block = [&](const kind& one) { return one.now.block(me.rank()) / 100; };
  std::vector<std::vector<at::Tensor>> both;
  for (const bool later : {true, false}) {
    auto x = leaves(all, [&](const kind& one) { return one.records() ? block(one) : one.now.block(me.rank()); });
    std::vector<at::Tensor> y;
    for (auto& one : later ? all_gather_coalesced_async(x, options).wait() : all_gather_coalesced(x, options)) {
      y.push_back(one.tensor);
    }
    both.push_back(derivatives(all, x, y));
  }
  expect_all_equal(both[0], both[1], "derivative ");
}

// Ranks wait in orders of their own, with plain calls and dropped handles among those in flight.
void waits_in_any_order(const group& me) {
  constexpr int calls = 5;
  std::vector<at::Tensor> inputs;
  std::vector<handle<std::vector<gathered>>> handles;
  const auto ids = at::arange(me.rank() + 1, there(at::kLong));
  for (int number = 0; number < calls; ++number) {
    inputs.push_back(leaf(at::full({me.rank() + 1, 2}, double(number), there())));
    handles.push_back(all_gather_coalesced_async({inputs.back(), ids}, {.group = me}));
    all_gather_coalesced_async({ids, inputs.back().detach()}, {.group = me});  // dropped
    if (number % 2 == 0) all_gather(ids, {.group = me});
  }
  auto loss = at::zeros({}, there(at::kDouble));
  for (int step = 0; step < calls; ++step) {
    const auto number = (step * (me.rank() % 2 ? 2 : 3) + me.rank()) % calls;
    const auto results = handles[number].wait();
    const auto rows = me.world() * (me.world() + 1) / 2;
    expect_equal(results[0].tensor.detach(), at::full({rows, 2}, double(number), there()), "a call of several");
    loss = loss + (results[0].tensor * double(number + 1)).sum();
  }
  loss.backward();
  for (int number = 0; number < calls; ++number) {
    expect_equal(inputs[number].grad(), at::full_like(inputs[number], double(me.world() * (number + 1))), "gradient");
  }
}

void errors(const group& me) {
  if (me.world() == 1) return;
  const auto x = at::ones({2, 3});
  const auto ids = at::ones({4}, at::kLong);
  const auto rest = [&] { return all_gather_coalesced_async({x, ids}, {.group = me}); };
  const auto before = rest();
  const auto refused = error_of<c10::ValueError>(
      [&] {
        if (me.rank() == 0) {
          all_gather_coalesced_async({x, ids}, {.dim = {0, 2}, .group = me});
        } else {
          rest().wait();
        }
      },
      "a dim that is not there");
  expect_contains(refused, "rank 0 refuses: tensor 1: dim must be from -1 to 0, got 2");
  expect_equal(before.wait()[1].tensor, at::ones({4 * me.world()}, at::kLong), "the call before");
  expect_same_everywhere(me, refused);
  const auto odd = all_gather_coalesced_async({x, me.rank() == 0 ? ids.to(at::kInt) : ids}, {.group = me});
  const auto text = error_of<c10::ValueError>([&] { odd.wait(); }, "ranks that disagree");
  expect_contains(text, "ranks disagree on dtype of tensor 1");
  expect_same_everywhere(me, text);
}

}  // namespace

case_list async_coalesced_cases() {
  return {{"async_coalesced/gathers", gathers},
          {"async_coalesced/scatters", scatters},
          {"async_coalesced/second_derivatives", second_derivatives},
          {"async_coalesced/waits_in_any_order", waits_in_any_order},
          {"async_coalesced/errors", errors}};
}

}  // namespace sheaf::test
