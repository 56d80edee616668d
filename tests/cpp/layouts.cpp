// SPDX-License-Identifier: MIT
// Coalesced and started calls with inputs and gradients that lie in memory in other ways than their results.
#include <string>
#include <vector>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

constexpr int forms = 4;
enum class way { coalesced, started, started_coalesced };

// The same values in another layout; of the last form only some of them.
at::Tensor formed(int form, const at::Tensor& x) {
  switch (form % forms) {
    case 0:
      return x.transpose(1, 2).contiguous().transpose(1, 2);
    case 1:
      return at::stack({x, x}, -1).select(-1, 0);
    case 2:
      return x.contiguous(at::MemoryFormat::ChannelsLast);
    default:
      return x.narrow(1, 0, 1).expand(x.sizes());
  }
}

std::vector<at::Tensor> gather(const group& me, way how, const std::vector<at::Tensor>& x) {
  std::vector<at::Tensor> results;
  if (how == way::started) {
    std::vector<handle<gathered>> handles;
    for (const auto& one : x) handles.push_back(all_gather_async(one, {.group = me}));
    for (const auto& one : handles) results.push_back(one.wait().tensor);
    return results;
  }
  const all_gather_coalesced_options options{.group = me};
  const auto all =
      how == way::coalesced ? all_gather_coalesced(x, options) : all_gather_coalesced_async(x, options).wait();
  for (const auto& one : all) results.push_back(one.tensor);
  return results;
}

std::vector<at::Tensor> scatter(const group& me, way how, const std::vector<at::Tensor>& y, const at::Tensor& sizes) {
  if (how == way::started) {
    std::vector<handle<at::Tensor>> handles;
    std::vector<at::Tensor> results;
    for (const auto& one : y) handles.push_back(reduce_scatter_async(one, sizes, {.group = me}));
    for (const auto& one : handles) results.push_back(one.wait());
    return results;
  }
  const reduce_scatter_coalesced_options options{.group = me};
  return how == way::coalesced ? reduce_scatter_coalesced(y, sizes, options)
                               : reduce_scatter_coalesced_async(y, sizes, options).wait();
}

// Every form once as an input, and the next one as its gradient.
void check(const group& me, way how, std::int64_t width) {
  std::vector<ragged> all;
  for (int form = 0; form < forms; ++form) {
    all.push_back({.sizes = size_patterns(me.world())[1], .shape = {0, 4, 3, width}, .seed = 10u + form});
  }
  std::vector<at::Tensor> blocks, wholes, block_grads, whole_grads;
  for (int form = 0; form < forms; ++form) {
    blocks.push_back(formed(form, all[form].block(me.rank())).detach().requires_grad_());
    wholes.push_back(formed(form, all[form].whole(me.rank())).detach().requires_grad_());
    block_grads.push_back(formed(form + 1, all[form].block(me.rank())));
    whole_grads.push_back(formed(form + 1, all[form].whole(me.rank())));
  }
  const auto y = gather(me, how, blocks);
  const auto x_grads = torch::autograd::grad(y, blocks, whole_grads);
  const auto mine = scatter(me, how, wholes, all[0].sizes_tensor());
  const auto y_grads = torch::autograd::grad(mine, wholes, block_grads);
  for (int form = 0; form < forms; ++form) {
    const auto& now = all[form];
    const auto what = "form " + std::to_string(form) + " of " + now.text();
    std::vector<at::Tensor> brought, summed, told, passed;
    for (int rank = 0; rank < me.world(); ++rank) {
      brought.push_back(formed(form, now.block(rank)));
      summed.push_back(formed(form, now.whole(rank)));
      told.push_back(formed(form + 1, now.whole(rank)));
      passed.push_back(formed(form + 1, now.block(rank)));
    }
    expect_equal(y[form], now.joined(brought), what);
    expect_equal(x_grads[form].contiguous(), now.rows_of(sum_truth(told, false), me.rank()), "gradient, " + what);
    expect_equal(mine[form], now.rows_of(sum_truth(summed, false), me.rank()), "sum, " + what);
    expect_equal(y_grads[form].contiguous(), now.joined(passed), "gradient of the sum, " + what);
    expect(y[form].is_contiguous() && mine[form].is_contiguous(), "contiguous, " + what);
  }
}

template <way how>
void other_layouts(const group& me) {
  for (const std::int64_t width : {2, 400}) check(me, how, width);
}

}  // namespace

case_list layout_cases() {
  return {{"layouts/coalesced", other_layouts<way::coalesced>},
          {"layouts/started", other_layouts<way::started>},
          {"layouts/started_coalesced", other_layouts<way::started_coalesced>}};
}

}  // namespace sheaf::test
