// SPDX-License-Identifier: MIT
// all_gather_coalesced: the kernels of its two ops (sizes learned, sizes given), their autograd, and the C++ call.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <functional>
#include <sheaf/all_gather_coalesced.hpp>

#include "core/copy.hpp"
#include "torch/coalesced.hpp"
#include "torch/coalesced_autograd.hpp"
#include "torch/errors.hpp"
#include "torch/nodes.hpp"

namespace sheaf {
namespace {

using tensor_list = std::vector<at::Tensor>;

// For copies within this call: whoever calls holds the tensor.
memory borrowed(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(const_cast<void*>(contiguous.const_data_ptr())), contiguous.nbytes(), nullptr};
}

std::int64_t bytes_of_packed(const tensor_list& owns) {
  std::int64_t bytes = 0;
  for (const auto& one : owns) bytes += packed_bytes(static_cast<std::int64_t>(one.nbytes()), owns.size());
  return bytes;
}

// The own blocks as they ride along with the header.
payload packed(const tensor_list& owns) {
  return {static_cast<std::size_t>(bytes_of_packed(owns)), [&owns](std::byte* to) {
            for (const auto& one : owns) to = pack_block(borrowed(one), owns.size(), to);
          }};
}

// Uninitialised results: slices of the engine's memory, where it has any, or each its own.
tensor_list allocate(coalesced& call, bundle& all, at::TensorList x, at::IntArrayRef dims) {
  const bool on_device = call.run().is_on_device();
  const auto whole = on_device ? memory{} : call.run().take_result(all.wholes());
  tensor_list results;
  results.reserve(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto& at = all.parts()[i].at;
    const auto bytes = static_cast<std::size_t>(at.bytes());
    const bool is_slice = whole.data && bytes > 0;
    results.push_back(
        on_device ? call.run().allocate(x[i], dims[i], at.rows, at, false)
                  : tensor_in(is_slice ? whole.slice(all.whole_place(i), bytes) : memory{}, x[i], dims[i], at.rows));
    all.put_whole(i, whole.data ? whole.slice(all.whole_place(i), bytes) : memory_of(results.back()));
  }
  return results;
}

tensor_list moved(coalesced& call, bundle& all, at::TensorList x, at::IntArrayRef dims, const tensor_list& owns) {
  auto results = allocate(call, all, x, dims);
  for (std::size_t i = 0; i < owns.size(); ++i) all.put_own(i, memory_of(owns[i]));
  call.run().all_gather(all);
  return results;
}

// Blocks that came along with their headers, to their places in one result after the other.
class inlined_blocks {
 public:
  inlined_blocks(int rank, const heard& said, std::span<const std::int64_t> bytes) : rank_(rank) {
    next_.reserve(said.world());
    for (std::size_t peer = 0; peer < said.world(); ++peer) {
      const auto payload = said.payload(peer);
      check_inlined(peer, payload.size(), bytes[peer]);
      next_.push_back(payload.data());
    }
  }
  // Of the next of `count` tensors.
  at::Tensor placed(const at::Tensor& own, std::int64_t dim, const layout& at, std::size_t count) {
    auto result = empty_with_rows(own, dim, at.rows);
    auto* const whole = borrowed(result).data;
    for (int peer = 0; peer < static_cast<int>(next_.size()); ++peer) {
      place(at, peer, peer == rank_ ? borrowed(own).data : next_[peer], whole);
      next_[peer] += packed_bytes(at.block_bytes(peer), count);
    }
    return result;
  }

 private:
  int rank_;
  std::vector<const std::byte*> next_;
};

}  // namespace

namespace kernels {

two_lists all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes, at::IntArrayRef dim,
                               std::int64_t world, mode_list grad, std::string group, timeout_argument timeout) {
  return translated([&]() -> two_lists {
    const auto dims = one_each(dim, x.size());
    coalesced call({.op = operation::all_gather_coalesced, .group = group, .world = world, .timeout = timeout}, x,
                   dims);
    const auto modes = call.modes(grad, true);
    const auto given = sizes ? call.given(*sizes, true) : rows_table(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!given[i].empty()) call.refuse_if(i, check_own_size(given[i], call.run().rank(), x[i].size(dims[i])));
    }
    call.describe(modes, given, true);
    const auto owns = contiguous_all(x);
    const auto& said = call.run().learn(call.is_inlined(bytes_of_packed(owns)) ? packed(owns) : payload());
    tensor_list sizes_of_each;
    sizes_of_each.reserve(x.size());
    const auto bytes = packed_bytes(call.run().head().tensors, said);
    if (call.are_inlined(bytes)) {
      tensor_list results;
      results.reserve(x.size());
      inlined_blocks blocks(call.run().rank(), said, bytes);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto at = call.place(i, said.rows_of(i));
        results.push_back(blocks.placed(owns[i], dims[i], at, x.size()));
        sizes_of_each.push_back(sizes_tensor(at.sizes));
      }
      return {std::move(results), std::move(sizes_of_each)};
    }
    const auto rows = rows_table_of(said);
    for (const auto& one : rows) sizes_of_each.push_back(sizes_tensor(one));
    auto all = call.bundle_of(rows, modes);
    return {moved(call, all, x, dims, owns), std::move(sizes_of_each)};
  });
}

tensor_list all_gather_coalesced_sized(at::TensorList x, const at::Tensor& sizes, c10::SymIntArrayRef total,
                                       at::IntArrayRef dim, std::int64_t world, mode_list mode, std::string group,
                                       mode_list grad, timeout_argument timeout, std::int64_t origin) {
  return translated([&] {
    const auto given = of_backward(origin, sizes);
    coalesced call({.op = operation::all_gather_coalesced,
                    .group = group,
                    .world = world,
                    .timeout = timeout,
                    .sized = true,
                    .origin = given.origin},
                   x, dim);
    const auto does = call.modes(mode, false);
    const auto modes = call.modes(grad, true);
    const auto rows = call.given(given.sizes, false);
    call.refuse_unless_each("total", total.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      call.refuse_if(i, check_own_size(rows[i], call.run().rank(), x[i].size(dim[i])));
      call.refuse_if(i, check_total(rows[i], total[i].expect_int(), "total is"));
      if (does[i] == gradient::mean) call.refuse_if(i, check_reduction(x[i], gradient::mean));
    }
    call.describe(modes, rows, true);
    auto all = call.bundle_of(rows, modes);
    tensor_list owns;
    for (std::size_t i = 0; i < x.size(); ++i) {
      owns.push_back(contiguous(does[i] == gradient::mean ? divided(x[i], world) : x[i]));
    }
    if (!call.are_inlined(all.packed().sizes)) {
      call.run().learn_if_checked();
      return moved(call, all, x, dim, owns);
    }
    inlined_blocks blocks(call.run().rank(), call.run().learn(packed(owns)), all.packed().sizes);
    tensor_list results;
    for (std::size_t i = 0; i < x.size(); ++i) {
      results.push_back(blocks.placed(owns[i], dim[i], all.parts()[i].at, x.size()));
    }
    return results;
  });
}

at::Tensor gather_sizes_coalesced(at::TensorList x, at::IntArrayRef dim, std::int64_t world, std::string group,
                                  timeout_argument timeout, std::int64_t follows) {
  return translated([&] {
    coalesced call(
        {.op = operation::gather_sizes, .group = group, .world = world, .timeout = timeout, .follows = follows}, x,
        dim);
    call.describe(std::vector<gradient>(x.size()), {}, false);
    return sizes_tensor(rows_table_of(call.run().learn({})));
  });
}

}  // namespace kernels

namespace autograd {
namespace {

struct scatter_back {
  static tensor_list call(const tensor_list& grads, const coalesced_back& back) {
    return ops::reduce_scatter_coalesced_sized(grads, back.sizes, back.extents, back.dims, back.world,
                                               as_list(back.modes), back.group, back.timeout, back.origin);
  }
};
[[maybe_unused]] const bool offered = offer_node(typeid(torch::autograd::CppNode<Coalesced<scatter_back>>));

// Ties what will be differentiated: `travels[i]` where all ranks take part, which is one node for all of these; mode
// `own` stays on the rank, a node each, since some ranks may never come to theirs.
tensor_list tied(at::TensorList x, tensor_list gathered, coalesced_back back, const outcome& said,
                 const std::vector<bool>& travels) {
  tensor_list inputs, results;
  std::vector<std::size_t> which;
  auto some = back;
  some.dims.clear();
  some.modes.clear();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (back.modes[i] == "own") {
      if (!x[i].requires_grad()) continue;
      gathered[i] = tie_own(x[i], back.sizes.select(0, static_cast<std::int64_t>(i)), back.dims[i], back.world,
                            back.group, gathered[i]);
    } else if (travels[i]) {
      which.push_back(i);
      inputs.push_back(x[i]);
      results.push_back(gathered[i]);
      some.extents.push_back(x[i].sym_size(back.dims[i]));
      some.dims.push_back(back.dims[i]);
      some.modes.push_back(back.modes[i]);
    }
  }
  if (which.empty()) return gathered;
  some.take(for_backward(said, {0, rows_of_some(back.sizes, which)}, some.modes.front()));
  const bool none = std::ranges::none_of(inputs, [](const at::Tensor& one) { return one.requires_grad(); });
  const auto anchor = none ? std::optional(at::empty({0}).requires_grad_()) : std::nullopt;
  auto ends = Coalesced<scatter_back>::apply(at::TensorList(inputs), anchor, some, std::tuple(std::move(results)));
  for (std::size_t i = 0; i < which.size(); ++i) gathered[which[i]] = std::move(ends[i]);
  return gathered;
}

std::vector<bool> recorded(at::TensorList x) {
  std::vector<bool> which;
  for (const auto& one : x) which.push_back(one.requires_grad());
  return which;
}

bool is_none(const std::vector<bool>& which) { return std::ranges::none_of(which, std::identity{}); }

}  // namespace

two_lists all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes, at::IntArrayRef dim,
                               std::int64_t world, mode_list grad, std::string group, timeout_argument timeout) {
  last_outcome() = {};  // a compiler's trace runs no kernel that would set it
  auto [gathered, learned] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::all_gather_coalesced(x, sizes, dim, world, grad, group, timeout);
  }();
  const auto said = std::exchange(last_outcome(), {});
  auto travels = recorded(x);
  for (std::size_t i = 0; i < said.any_rank_records_of.size(); ++i) {
    if (said.any_rank_records_of[i]) travels[i] = true;
  }
  if (!c10::GradMode::is_enabled() || is_none(travels)) return {std::move(gathered), std::move(learned)};
  auto modes = grad.vec();
  if (modes.size() == 1) modes.resize(x.size(), modes.front());
  auto results =
      tied(x, std::move(gathered),
           {at::stack(learned), {}, one_each(dim, x.size()), world, std::move(modes), group, timeout}, said, travels);
  return {std::move(results), std::move(learned)};
}

tensor_list all_gather_coalesced_sized(at::TensorList x, const at::Tensor& sizes, c10::SymIntArrayRef total,
                                       at::IntArrayRef dim, std::int64_t world, mode_list mode, std::string group,
                                       mode_list grad, timeout_argument timeout, std::int64_t origin) {
  last_outcome() = {};
  auto gathered = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::all_gather_coalesced_sized(x, sizes, total, dim, world, mode, group, grad, timeout, origin);
  }();
  const auto said = std::exchange(last_outcome(), {});
  const auto travels = recorded(x);
  if (!c10::GradMode::is_enabled() || is_none(travels)) return gathered;
  return tied(x, std::move(gathered), {sizes, {}, dim.vec(), world, grad.vec(), group, timeout}, said, travels);
}

}  // namespace autograd

std::vector<gathered> all_gather_coalesced(at::TensorList x, const all_gather_coalesced_options& options) {
  const auto group = options.group.name();
  const auto timeout = seconds_of(options.timeout);
  const auto each = translated([&] {
    return each_checked(arguments_of(operation::all_gather_coalesced, options), x, options.dim, options.sizes,
                        options.grad.count_for(x.size()));
  });
  mode_list grad;
  for (std::size_t i = 0; i < x.size(); ++i) grad.push_back(std::string(name(options.grad[i])));
  std::vector<gathered> results;
  if (each.world == 1) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      auto sizes = translated([&] {
        return alone(title_of(operation::all_gather_coalesced, i), x[i], each.rows[i], each.dims[i], options.grad[i],
                     timeout);
      });
      results.push_back({alone_result(x[i]), std::move(sizes)});
    }
    return results;
  }
  tensor_list tensors, sizes;
  if (each.are_all_given()) {
    std::vector<c10::SymInt> totals;
    for (const auto& rows : each.rows) totals.emplace_back(rows->sum().item<std::int64_t>());
    mode_list sums;
    for (std::size_t i = 0; i < x.size(); ++i) sums.push_back("sum");
    tensors =
        ops::all_gather_coalesced_sized(x, *each.sizes, totals, each.dims, each.world, sums, group, grad, timeout, 0);
    for (const auto& rows : each.rows) sizes.push_back(*rows);
  } else {
    std::tie(tensors, sizes) = ops::all_gather_coalesced(x, each.sizes, each.dims, each.world, grad, group, timeout);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    results.push_back({std::move(tensors[i]), std::move(sizes[i])});
  }
  return results;
}

}  // namespace sheaf
