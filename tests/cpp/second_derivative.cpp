// SPDX-License-Identifier: MIT
// Derivatives of derivatives: the backward of each op is the other, so `mean` divides once for each differentiation.
#include <cmath>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

// The own rows of the sum, by each of the four calls; those of several tensors carry another one.
template <class Check>
void for_each_way(const group& me, const at::Tensor& y, const at::Tensor& sizes, reduce_op op, Check&& check) {
  const reduce_scatter_options one{.dim = 1, .op = op, .group = me};
  const reduce_scatter_coalesced_options several{.dim = 1, .op = op, .group = me};
  const std::vector<at::Tensor> both{y, y.detach()};
  check(reduce_scatter(y, sizes, one), "plain, ");
  check(reduce_scatter_async(y, sizes, one).wait(), "started, ");
  check(reduce_scatter_coalesced(both, sizes, several)[0], "coalesced, ");
  check(reduce_scatter_coalesced_async(both, sizes, several).wait()[0], "coalesced and started, ");
}

// Rank r's loss is the sum of w_r · y³ for the gathered y. Its gradient is tried with v_r, the next with u_r.
struct cubic {
  ragged now;
  gradient mode;

  at::Tensor weight(int rank) const { return now.whole(rank) / 100; }
  at::Tensor probe(int rank, int order) const {
    return noise(now.shape_with(now.sizes[rank]), 300 + 100 * order + rank, at::kDouble, 1);
  }
  at::Tensor y() const { return now.gathered() / 100; }

  // What rank q's backward of the scatter makes of the probes: everybody's, or its own rows alone.
  at::Tensor spread(int rank, int order) const {
    std::vector<at::Tensor> blocks;
    for (int q = 0; q < now.world(); ++q) {
      blocks.push_back(mode == gradient::own && q != rank ? at::zeros_like(probe(q, order)) : probe(q, order));
    }
    return now.joined(blocks);
  }

  // Rows of the sum over ranks of what `term(q)` is on rank q; rank r's own alone for `own`.
  template <class Term>
  at::Tensor collect(int rank, Term&& term) const {
    if (mode == gradient::own) return now.rows_of(term(rank), rank);
    std::vector<at::Tensor> terms;
    for (int q = 0; q < now.world(); ++q) terms.push_back(term(q));
    return now.rows_of(sum_truth(terms, false), rank);
  }

  double factor(int differentiations) const {
    return mode == gradient::mean ? std::pow(1.0 / now.world(), differentiations) : 1.0;
  }
};

void check(const group& me, const cubic& f, bool given) {
  const int rank = me.rank();
  const auto text = std::string(name_of(f.mode)) + (given ? ", sizes given, " : ", learned, ") + f.now.text();
  const auto x = leaf(f.now.block(rank) / 100);
  const auto w = leaf(f.weight(rank));
  const auto sizes = f.now.sizes_if(given);
  const auto y = all_gather(x, {.dim = f.now.dim, .sizes = sizes, .grad = f.mode, .group = me}).tensor;
  const auto one = at::ones({}, there(at::kDouble));
  const auto loss = (w * y.pow(3)).sum();

  const auto first = grad_of(loss, x, one, true);
  const auto want_first = f.factor(1) * f.collect(rank, [&](int q) { return 3 * f.weight(q) * f.y().square(); });
  expect_close(first, want_first, "first, " + text);

  const auto probed = (first * f.probe(rank, 0)).sum();
  const auto both = torch::autograd::grad({probed}, {x, w}, {one}, /*retain_graph=*/true, /*create_graph=*/true);
  const auto want_second =
      f.factor(2) * f.collect(rank, [&](int q) { return 6 * f.weight(q) * f.y() * f.spread(q, 0); });
  expect_close(both[0], want_second, "second, " + text);
  expect_close(both[1], f.factor(1) * 3 * f.y().square() * f.spread(rank, 0), "second by the weight, " + text);

  const auto third = grad_of((both[0] * f.probe(rank, 1)).sum(), x, one);
  const auto want_third =
      f.factor(3) * f.collect(rank, [&](int q) { return 6 * f.weight(q) * f.spread(q, 0) * f.spread(q, 1); });
  expect_close(third, want_third, "third, " + text);
}

void of_all_gather(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, -1}) {
      for (const auto mode : all_modes) check(me, {{.sizes = sizes, .dim = dim, .shape = {2, 3}}, mode}, dim == 0);
    }
  }
}

// Rank r's loss is the sum of w_r · m_r³ for its rows m_r of the sum. Its gradient, on all ranks the gather of
// 3 w m², is tried with v_q on rank q: the second is the gather of 6 w m V, where V is the scattered sum of v.
void of_reduce_scatter(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const auto op : {reduce_op::sum, reduce_op::mean}) {
      const ragged now{.sizes = sizes, .dim = 1, .shape = {2, 0}};
      const bool mean = op == reduce_op::mean;
      const double factor = mean ? 1.0 / me.world() : 1.0;
      const auto probe = [&](int q) { return noise(now.shape_with(now.rows()), 800 + q, at::kDouble, 1); };
      std::vector<at::Tensor> wholes, probes, firsts, seconds;
      for (int q = 0; q < me.world(); ++q) {
        wholes.push_back(now.whole(q) / 100);
        probes.push_back(probe(q));
      }
      for (int q = 0; q < me.world(); ++q) {
        const auto m = now.rows_of(sum_truth(wholes, mean), q);
        const auto spread = now.rows_of(sum_truth(probes, mean), q);
        firsts.push_back(3 * now.block(q) * m.square());
        seconds.push_back(6 * now.block(q) * m * spread);
      }
      const auto one = at::ones({}, there(at::kDouble));
      const auto y = leaf(wholes[me.rank()]);
      for_each_way(me, y, now.sizes_tensor(), op, [&](const at::Tensor& mine, const std::string& way) {
        const auto first = grad_of((now.block(me.rank()) * mine.pow(3)).sum(), y, one, true);
        expect_close(first, factor * now.joined(firsts), "first, " + way + now.text());
        const auto second = grad_of((first * probe(me.rank())).sum(), y, one);
        expect_close(second, factor * now.joined(seconds), "second, " + way + now.text());
      });
    }
  }
}

}  // namespace

case_list second_derivative_cases() {
  return {{"second_derivative/of_all_gather", of_all_gather},
          {"second_derivative/of_reduce_scatter", of_reduce_scatter}};
}

}  // namespace sheaf::test
