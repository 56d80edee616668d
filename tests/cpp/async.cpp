// SPDX-License-Identifier: MIT
// Started calls give what plain ones give, in any order of waiting, and leave the group as they found it.
#include <numeric>
#include <string>
#include <vector>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

at::Tensor gradient_truth(const ragged& now, gradient mode, int rank) {
  if (mode == gradient::own) return now.rows_of(now.whole(rank), rank);
  return now.rows_of(mode == gradient::sum ? now.summed() : now.averaged(), rank);
}

void gathers(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      for (const auto mode : all_modes) {
        for (const bool given : {false, true}) {
          const ragged now{.sizes = sizes, .dim = dim};
          const auto text = std::string(name_of(mode)) + (given ? ", sizes given, " : ", learned, ") + now.text();
          const auto x = leaf(now.block(me.rank()));
          const auto handle =
              all_gather_async(x, {.dim = dim, .sizes = now.sizes_if(given), .grad = mode, .group = me});
          const auto [y, learned] = handle.wait();
          expect(handle.done() || !device().is_cpu(), "done");  // a device may still be at it
          expect_equal(y, now.gathered(), text);
          expect_equal(learned, now.sizes_tensor(), "sizes, " + text);
          expect(handle.wait().tensor.is_same(y) && handle.wait().sizes.is_same(learned), "wait() twice");
          expect_equal(grad_of(y, x, now.whole(me.rank())), gradient_truth(now, mode, me.rank()), text);
        }
      }
    }
  }
}

void scatters(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const auto op : {reduce_op::sum, reduce_op::mean}) {
      const ragged now{.sizes = sizes, .dim = 1};
      const bool mean = op == reduce_op::mean;
      const auto y = leaf(now.whole(me.rank()));
      const auto mine = reduce_scatter_async(y, now.sizes_tensor(), {.dim = 1, .op = op, .group = me}).wait();
      expect_equal(mine, now.rows_of(mean ? now.averaged() : now.summed(), me.rank()), now.text());
      const auto back = mean ? divided(now.gathered(), me.world()) : now.gathered();
      expect_close(grad_of(mine, y, now.block(me.rank())), back, "gradient, " + now.text());
    }
  }
}

// d/dx of the gradient of sum(w_r y^3): see the truth of the plain call, which this one must equal bit for bit.
void second_derivative(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2), .dim = 1};
  for (const auto mode : all_modes) {
    const auto twice = [&](auto&& gather) {
      const auto x = leaf(now.block(me.rank()) / 100);
      const auto y = gather(x);
      const auto first = grad_of(y * y * y, x, now.whole(me.rank()) / 100, true);
      return grad_of(first, x, now.block(me.rank()) / 50);
    };
    const all_gather_options options{.dim = 1, .grad = mode, .group = me};
    expect_equal(twice([&](const at::Tensor& x) { return all_gather_async(x, options).wait().tensor; }),
                 twice([&](const at::Tensor& x) { return all_gather(x, options).tensor; }), name_of(mode));
  }
}

// Ranks wait in orders of their own, with plain calls among those in flight; their backward is in step all the same.
void waits_in_any_order(const group& me) {
  constexpr int calls = 7;
  std::vector<at::Tensor> inputs;
  std::vector<handle<gathered>> handles;
  const auto data = [&](int number) { return ragged{.sizes = extents(me.world(), 2), .seed = 10u + number}; };
  for (int number = 0; number < calls; ++number) {
    inputs.push_back(leaf(data(number).block(me.rank())));
    handles.push_back(all_gather_async(inputs.back(), {.group = me}));
    if (number == 3) expect_equal(all_gather(inputs[0], {.group = me}).tensor, data(0).gathered(), "a plain call");
  }
  at::Tensor loss = at::zeros({}, there(at::kDouble));
  for (int turn = 0; turn < calls; ++turn) {
    const int number = me.rank() % 2 == 0 ? (turn + me.rank()) % calls : calls - 1 - turn;
    const auto y = handles[number].wait().tensor;
    expect_equal(y, data(number).gathered(), "call " + std::to_string(number));
    loss = loss + (y * (number + 1)).sum();
  }
  loss.backward();
  for (int number = 0; number < calls; ++number) {
    expect_equal(inputs[number].grad(), at::full_like(inputs[number], double(me.world() * (number + 1))), "gradient");
  }
}

void as_many_as_may_be_in_flight(const group& me) {
  if (me.world() == 1) return;  // each is done at once
  const ragged now{.sizes = extents(me.world(), 1)};
  const auto start = [&] { return all_gather_async(now.block(me.rank()), {.group = me}); };
  std::vector<handle<gathered>> handles;
  for (int number = 0; number < 64; ++number) handles.push_back(start());
  expect_contains(error_of<c10::ValueError>(start, "one more"), "all_gather: 64 calls of this group are in flight");
  handles.pop_back();  // dropped, it goes on until it is done
  handles.front().wait();
  handles.push_back(start());
  for (const auto& one : handles) expect_equal(one.wait().tensor, now.gathered(), "each of them");
  expect_same_everywhere(me, "still in step");
}

// What one rank sees by itself is thrown by its start; the others hear of it when they wait.
void refusals(const group& me) {
  const ragged now{.sizes = extents(me.world(), 1)};
  const auto x = now.block(me.rank());
  const auto before = all_gather_async(x, {.group = me});
  const auto text = error_of<c10::ValueError>(
      [&] {
        if (me.rank() == 0) {
          all_gather_async(x, {.dim = 9, .group = me});
        } else {
          all_gather_async(x, {.group = me}).wait();
        }
      },
      "a dim that is not there");
  expect_contains(text, "dim must be from -3 to 2, got 9");
  if (me.world() > 1) expect_contains(text, "rank 0 refuses");
  expect_equal(before.wait().tensor, now.gathered(), "the call before");
  expect_same_everywhere(me, text);
}

void disagreements(const group& me) {
  if (me.world() == 1) return;
  const ragged now{.sizes = extents(me.world(), 1)};
  const auto x = now.block(me.rank());
  const auto odd = all_gather_async(me.rank() == 0 ? x.to(at::kInt) : x, {.group = me});
  const auto next = all_gather_async(x, {.group = me});
  for (int twice = 0; twice < 2; ++twice) {
    const auto text = error_of<c10::ValueError>([&] { odd.wait(); }, "ranks that disagree");
    expect_contains(text, "ranks disagree on dtype");
  }
  expect_equal(next.wait().tensor, now.gathered(), "the next call");
}

}  // namespace

case_list async_cases() {
  return {{"async/gathers", gathers},
          {"async/scatters", scatters},
          {"async/second_derivative", second_derivative},
          {"async/waits_in_any_order", waits_in_any_order},
          {"async/as_many_as_may_be_in_flight", as_many_as_may_be_in_flight},
          {"async/refusals", refusals},
          {"async/disagreements", disagreements}};
}

}  // namespace sheaf::test
