// SPDX-License-Identifier: MIT
// Calls drawn at random, the same on every rank: shapes, dims, sizes, types, layouts and modes nobody thought of.
#include <algorithm>
#include <numeric>
#include <random>

#include "cpp/cases.hpp"
#include "cpp/kinds.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

struct dice {
  std::mt19937_64 source;
  std::int64_t upto(std::int64_t most) {
    return static_cast<std::int64_t>(source() % static_cast<std::uint64_t>(most + 1));
  }
  bool coin() { return upto(1) == 1; }
};

ragged drawn(dice& draw, int world, std::uint64_t seed) {
  static constexpr at::ScalarType types[] = {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kComplexFloat};
  ragged now{.type = types[draw.upto(4)], .seed = seed};
  now.shape.assign(1 + draw.upto(4), 0);
  for (auto& extent : now.shape) extent = draw.upto(9) == 0 ? 0 : 1 + draw.upto(6);
  const auto ndim = static_cast<std::int64_t>(now.shape.size());
  now.dim = draw.upto(2 * ndim - 1) - ndim;
  const auto most = draw.coin() ? 5 : 200;
  for (int rank = 0; rank < world; ++rank) now.sizes.push_back(draw.upto(3) == 0 ? 0 : draw.upto(most));
  return now;
}

// The same values with their dims in memory in another order.
at::Tensor shuffled(dice& draw, const at::Tensor& x) {
  std::vector<std::int64_t> order(x.dim()), back(x.dim());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), draw.source);
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<std::int64_t>(i);
  return x.permute(order).contiguous().permute(back);
}

void gather_one(const group& me, const ragged& now, dice& draw) {
  const auto mode = all_modes[draw.upto(2)];
  const auto sizes = now.sizes_if(draw.coin());
  const auto text = std::string("all_gather ") + name_of(mode) + (sizes ? " given, " : " learned, ") + now.text();
  const auto x = shuffled(draw, now.block(me.rank())).detach().requires_grad_();
  const auto [y, learned] = all_gather(x, {.dim = now.dim, .sizes = sizes, .grad = mode, .group = me});
  expect_equal(y, now.gathered(), text);
  expect_equal(learned, now.sizes_tensor(), text);
  const auto upstream = mode == gradient::own   ? now.whole(me.rank())
                        : mode == gradient::sum ? now.summed()
                                                : now.averaged();
  expect_equal(grad_of(y, x, shuffled(draw, now.whole(me.rank()))), now.rows_of(upstream, me.rank()), text);
}

void reduce_one(const group& me, const ragged& now, dice& draw) {
  const auto op = draw.coin() ? reduce_op::mean : reduce_op::sum;
  const auto y = shuffled(draw, now.whole(me.rank())).detach().requires_grad_();
  const auto mine = reduce_scatter(y, now.sizes_tensor(), {.dim = now.dim, .op = op, .group = me});
  const auto want = op == reduce_op::mean ? now.averaged() : now.summed();
  expect_equal(mine, now.rows_of(want, me.rank()), "reduce_scatter " + now.text());
  std::vector<at::Tensor> upstream;
  for (int rank = 0; rank < me.world(); ++rank) {
    upstream.push_back(op == reduce_op::mean ? divided(now.block(rank), me.world()) : now.block(rank));
  }
  expect_equal(grad_of(mine, y, shuffled(draw, now.block(me.rank()))), now.joined(upstream),
               "its gradient " + now.text());
}

void calls(const group& me) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    dice draw{std::mt19937_64(seed)};
    const auto now = drawn(draw, me.world(), seed);
    if (draw.coin()) {
      gather_one(me, now, draw);
    } else {
      reduce_one(me, now, draw);
    }
  }
}

kinds several(dice& draw, int world, std::uint64_t seed) {
  kinds all(1 + draw.upto(5));
  for (auto& one : all) one = {drawn(draw, world, ++seed), all_modes[draw.upto(2)]};
  return all;
}

void expect_gradients(const std::vector<at::Tensor>& of, const std::vector<at::Tensor>& with,
                      const std::vector<at::Tensor>& upstream, const std::vector<at::Tensor>& want, const kinds& all) {
  const auto got = torch::autograd::grad(of, with, upstream);
  for (std::size_t i = 0; i < all.size(); ++i)
    expect_equal(got[i], want[i], "gradient of several, " + all[i].now.text());
}

void gather_several(const group& me, const kinds& all, dice& draw) {
  std::vector<at::Tensor> x, y, upstream, want;
  for (const auto& one : all) {
    x.push_back(shuffled(draw, one.now.block(me.rank())).detach().requires_grad_());
    upstream.push_back(shuffled(draw, one.now.whole(me.rank())));
    want.push_back(one.upstream(me.rank()));
  }
  const auto options = options_of(me, all, static_cast<int>(draw.upto(2)));
  const auto results = draw.coin() ? all_gather_coalesced(x, options) : all_gather_coalesced_async(x, options).wait();
  for (std::size_t i = 0; i < all.size(); ++i) {
    expect_equal(results[i].tensor, all[i].now.gathered(), "one of several, " + all[i].now.text());
    expect_equal(results[i].sizes, all[i].now.sizes_tensor(), "sizes of one of several");
    y.push_back(results[i].tensor);
  }
  expect_gradients(y, x, upstream, want, all);
}

void reduce_several(const group& me, const kinds& all, dice& draw) {
  std::vector<std::int64_t> dims;
  std::vector<reduce_op> ops;
  std::vector<at::Tensor> y, sizes, upstream, want;
  for (const auto& one : all) {
    const bool mean = one.mode == gradient::mean;
    dims.push_back(one.now.dim);
    ops.push_back(mean ? reduce_op::mean : reduce_op::sum);
    sizes.push_back(one.now.sizes_tensor());
    y.push_back(shuffled(draw, one.now.whole(me.rank())).detach().requires_grad_());
    upstream.push_back(shuffled(draw, one.now.block(me.rank())));
    want.push_back(mean ? divided(one.now.gathered(), me.world()) : one.now.gathered());
  }
  const reduce_scatter_coalesced_options options{.dim = dims, .op = ops, .group = me};
  const auto mine = draw.coin() ? reduce_scatter_coalesced(y, sizes, options)
                                : reduce_scatter_coalesced_async(y, sizes, options).wait();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& now = all[i].now;
    const auto& sum = ops[i] == reduce_op::mean ? now.averaged() : now.summed();
    expect_equal(mine[i], now.rows_of(sum, me.rank()), "one sum of several, " + now.text());
  }
  expect_gradients(mine, y, upstream, want, all);
}

void calls_of_several(const group& me) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    dice draw{std::mt19937_64(1000 + seed)};
    const auto all = several(draw, me.world(), 100 * seed);
    if (draw.coin()) {
      gather_several(me, all, draw);
    } else {
      reduce_several(me, all, draw);
    }
  }
}

}  // namespace

case_list random_cases() { return {{"random/calls", calls}, {"random/calls_of_several", calls_of_several}}; }

}  // namespace sheaf::test
