// SPDX-License-Identifier: MIT
// reduce_scatter_coalesced: kernel, autograd and the C++ call.
#include <ATen/core/LegacyTypeDispatch.h>

#include <sheaf/reduce_scatter_coalesced.hpp>

#include "torch/coalesced.hpp"
#include "torch/coalesced_autograd.hpp"
#include "torch/errors.hpp"
#include "torch/nodes.hpp"

namespace sheaf {
namespace {

using tensor_list = std::vector<at::Tensor>;

std::vector<std::byte> packed(const bundle& all) {
  const auto& at = all.packed();
  std::vector<std::byte> bytes(at.bytes());
  for (std::size_t owner = 0; owner < at.sizes.size(); ++owner) {
    all.pack(static_cast<int>(owner), 0, at.sizes[owner], bytes.data() + at.offsets[owner]);
  }
  return bytes;
}

// Tensors that came along with their headers, whole: each rank sums its own rows of them.
void sum_inlined(const bundle& all, int rank, const heard& said, const memory& own) {
  std::vector<const std::byte*> sources;
  for (std::size_t peer = 0; peer < said.world(); ++peer) {
    const auto payload = said.payload(peer);
    check_inlined(peer, payload.size(), all.packed().bytes());
    sources.push_back(payload.data() + all.packed().offsets[rank]);
  }
  all.sum(rank, 0, sources, own.data, own.size);
}

// The own blocks are slices of one memory.
memory summed(coalesced& call, const bundle& all) {
  auto& run = call.run();
  const auto bytes = static_cast<std::size_t>(all.packed().sizes[run.rank()]);
  if (call.is_inlined(all.packed().bytes())) {
    const auto& said = run.learn(packed(all));
    auto own = allocate(bytes);
    sum_inlined(all, run.rank(), said, own);
    return own;
  }
  run.learn_if_checked();
  auto own = run.take_result(all.packed());
  if (!own.data) own = allocate(bytes);
  run.reduce_scatter(all, own);
  return own;
}

// On a device each has its own.
tensor_list summed_on_device(coalesced& call, bundle& all, at::TensorList y, at::IntArrayRef dims) {
  auto& run = call.run();
  run.learn_if_checked();
  tensor_list results;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const auto& at = all.parts()[i].at;
    results.push_back(run.allocate(y[i], dims[i], at.sizes[run.rank()], at, false));
    all.put_own(i, memory_of(results.back()));
  }
  run.reduce_scatter(all, {});
  return results;
}

}  // namespace

namespace kernels {

tensor_list reduce_scatter_coalesced_sized(at::TensorList y, const at::Tensor& sizes, c10::SymIntArrayRef own,
                                           at::IntArrayRef dim, std::int64_t world, mode_list mode, std::string group,
                                           timeout_argument timeout, std::int64_t origin) {
  return translated([&] {
    const auto given = of_backward(origin, sizes);
    coalesced call({.op = operation::reduce_scatter_coalesced,
                    .group = group,
                    .world = world,
                    .timeout = timeout,
                    .sized = true,
                    .origin = given.origin},
                   y, dim);
    const auto rank = call.run().rank();
    const auto modes = call.modes(mode, false);
    const auto rows = call.given(given.sizes, false);
    call.refuse_unless_each("own", own.size());
    for (std::size_t i = 0; i < y.size(); ++i) {
      call.refuse_if(i, check_total(rows[i], y[i].size(dim[i]), "the tensor has"));
      call.refuse_if(i, check_own_size(rows[i], rank, own[i].expect_int()));
      call.refuse_if(i, check_reduction(y[i], modes[i]));
    }
    call.describe(modes, rows, false);
    auto all = call.bundle_of(rows, modes);
    const auto wholes = contiguous_all(y);
    for (std::size_t i = 0; i < y.size(); ++i) all.put_whole(i, memory_of(wholes[i]));
    if (call.run().is_on_device()) return summed_on_device(call, all, y, dim);
    const auto sums = summed(call, all);
    tensor_list results;
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto bytes = static_cast<std::size_t>(all.parts()[i].at.block_bytes(rank));
      results.push_back(
          tensor_in(bytes > 0 ? sums.slice(all.own_place(i), bytes) : memory{}, y[i], dim[i], rows[i][rank]));
    }
    return results;
  });
}

}  // namespace kernels

namespace autograd {
namespace {

struct gather_back {
  static tensor_list call(const tensor_list& grads, const coalesced_back& back) {
    const auto modes = as_list(back.modes);
    return ops::all_gather_coalesced_sized(grads, back.sizes, back.extents, back.dims, back.world, modes, back.group,
                                           modes, back.timeout, back.origin);
  }
};
[[maybe_unused]] const bool offered = offer_node(typeid(torch::autograd::CppNode<Coalesced<gather_back>>));

}  // namespace

tensor_list reduce_scatter_coalesced_sized(at::TensorList y, const at::Tensor& sizes, c10::SymIntArrayRef own,
                                           at::IntArrayRef dim, std::int64_t world, mode_list mode, std::string group,
                                           timeout_argument timeout, std::int64_t origin) {
  last_outcome() = {};
  auto mine = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::reduce_scatter_coalesced_sized(y, sizes, own, dim, world, mode, group, timeout, origin);
  }();
  const auto said = std::exchange(last_outcome(), {});
  if (!c10::GradMode::is_enabled()) return mine;
  coalesced_back back{.world = world, .group = group, .timeout = timeout};
  std::vector<std::size_t> which;
  tensor_list inputs, results;
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!y[i].requires_grad()) continue;
    which.push_back(i);
    inputs.push_back(y[i]);
    results.push_back(mine[i]);
    back.extents.push_back(y[i].sym_size(dim[i]));
    back.dims.push_back(dim[i]);
    back.modes.push_back(mode.get(i));
  }
  if (which.empty()) return mine;
  back.take(for_backward(said, {0, rows_of_some(sizes, which)}, back.modes.front()));
  auto ends = Coalesced<gather_back>::apply(at::TensorList(inputs), std::optional<at::Tensor>(), back,
                                            std::tuple(std::move(results)));
  for (std::size_t i = 0; i < which.size(); ++i) mine[which[i]] = std::move(ends[i]);
  return mine;
}

}  // namespace autograd

std::vector<at::Tensor> reduce_scatter_coalesced(at::TensorList y, const per_tensor<at::Tensor>& sizes,
                                                 const reduce_scatter_coalesced_options& options) {
  const auto op = operation::reduce_scatter_coalesced;
  std::vector<std::optional<at::Tensor>> given;
  for (std::size_t i = 0; i < sizes.count_for(y.size()); ++i) given.emplace_back(sizes[i]);
  const auto each = translated(
      [&] { return each_checked(arguments_of(op, options), y, options.dim, given, options.op.count_for(y.size())); });
  mode_list mode;
  for (std::size_t i = 0; i < y.size(); ++i) mode.push_back(options.op[i] == reduce_op::mean ? "mean" : "sum");
  if (each.world == 1) {
    std::vector<at::Tensor> results;
    for (std::size_t i = 0; i < y.size(); ++i) {
      translated([&] {
        return alone(title_of(op, i), y[i], each.rows[i], each.dims[i], gradient_from(mode.get(i)),
                     seconds_of(options.timeout));
      });
      results.push_back(alone_result(y[i]));
    }
    return results;
  }
  std::vector<c10::SymInt> own;
  for (const auto& rows : each.rows) own.emplace_back(rows->select(0, options.group.rank()).item<std::int64_t>());
  return ops::reduce_scatter_coalesced_sized(y, *each.sizes, own, each.dims, each.world, mode, options.group.name(),
                                             seconds_of(options.timeout), 0);
}

}  // namespace sheaf
