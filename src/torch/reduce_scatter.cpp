// SPDX-License-Identifier: MIT
// reduce_scatter: kernel, autograd and the C++ call.
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include <sheaf/reduce_scatter.hpp>

#include "core/copy.hpp"
#include "core/sum.hpp"
#include "torch/collective.hpp"
#include "torch/errors.hpp"
#include "torch/nodes.hpp"
#include "torch/ops.hpp"
#include "torch/origin.hpp"
#include "torch/refusal.hpp"

namespace sheaf {
namespace {

// Tensors that came along with their headers, whole: each rank sums its own rows of them.
void sum_inlined(const collective& run, const layout& at, const heard& said, const at::Tensor& whole,
                 const at::Tensor& result) {
  std::vector<std::vector<std::byte>> blocks;
  std::vector<const std::byte*> sources;
  sources.reserve(said.world());
  for (std::size_t rank = 0; rank < said.world(); ++rank) {
    const auto payload = said.payload(rank);
    check_inlined(rank, payload.size(), at.bytes());
    if (at.outer == 1) {
      const auto* from = static_cast<int>(rank) == run.rank() ? bytes_of(whole).data() : payload.data();
      sources.push_back(from + at.block_offset(run.rank()));
      continue;
    }
    blocks.emplace_back(result.nbytes());
    pack(at, run.rank(), payload.data(), 0, at.block_bytes(run.rank()), blocks.back().data());
    sources.push_back(blocks.back().data());
  }
  sum_ranks(run.tensor().type, reduction_of(run.mode()), sources, static_cast<std::byte*>(result.mutable_data_ptr()),
            result.nbytes());
}

payload inlined_payload(const collective& run, const layout& at, const at::Tensor& whole) {
  if (at.outer > 1) return bytes_of(whole);
  return {bytes_of(whole), {std::size_t(at.block_offset(run.rank())), std::size_t(at.block_bytes(run.rank()))}};
}

}  // namespace

namespace kernels {

at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, std::string mode, std::string group, timeout_argument timeout,
                                std::int64_t origin) {
  return translated([&] {
    const auto given = of_backward(origin, sizes);
    collective run({.op = operation::reduce_scatter,
                    .mode = mode,
                    .group = group,
                    .world = world,
                    .timeout = timeout,
                    .sized = true,
                    .local = mode == name(gradient::own),
                    .origin = given.origin});
    run.take(y, dim);
    run.refuse_if(check_sizes(given.sizes, run.world()));
    const auto rows = sizes_of(given.sizes);
    run.refuse_if(check_total(rows, y.size(dim), "the tensor has"));
    run.refuse_if(check_own_size(rows, run.rank(), own.expect_int()));
    run.describe(y, dim, recording::off);
    run.give(rows);
    const auto at = run.place(rows);
    if (run.mode() == gradient::own) {
      return y.narrow(dim, at.offsets[run.rank()], rows[run.rank()]).clone(at::MemoryFormat::Contiguous);
    }
    run.refuse_if(check_reduction(y, run.mode()));
    const auto whole = contiguous(y);
    if (run.is_inlined(at.bytes())) {
      const auto& said = run.learn(inlined_payload(run, at, whole));
      auto result = run.allocate(y, dim, rows[run.rank()], at, true);
      sum_inlined(run, at, said, whole, result);
      return result;
    }
    run.learn_if_checked();
    auto result = run.allocate(y, dim, rows[run.rank()], at, false);
    run.reduce_scatter(at, whole, result);
    return result;
  });
}

}  // namespace kernels

namespace autograd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own,
                            std::int64_t dim, std::int64_t world, const std::string& mode, const std::string& group,
                            timeout_argument timeout, std::int64_t origin) {
    const at::AutoDispatchBelowADInplaceOrView below;
    last_outcome() = {};
    auto mine = ops::reduce_scatter_sized(y, sizes, std::move(own), dim, world, mode, group, timeout, origin);
    const auto back = for_backward(std::exchange(last_outcome(), {}), {origin, sizes}, mode);
    ctx->save_for_backward({back.sizes});
    ctx->saved_data["total"] = y.sym_size(dim);
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["world"] = world;
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["group"] = group;
    ctx->saved_data["timeout"] = timeout;
    ctx->saved_data["origin"] = back.origin;
    return mine;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& saved = ctx->saved_data;
    auto whole =
        ops::all_gather_sized(grads[0], ctx->get_saved_variables()[0], saved["total"].toSymInt(), saved["dim"].toInt(),
                              saved["world"].toInt(), saved["mode"].toStringRef(), saved["group"].toStringRef(),
                              std::nullopt, saved["timeout"].toOptional<double>(), saved["origin"].toInt(), 0);
    variable_list inputs(9);
    inputs[0] = std::move(whole);
    return inputs;
  }
};
[[maybe_unused]] const bool offered = offer_node(typeid(torch::autograd::CppNode<ReduceScatter>));

}  // namespace

at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, std::string mode, std::string group, timeout_argument timeout,
                                std::int64_t origin) {
  if (c10::GradMode::is_enabled() && y.requires_grad()) {
    return ReduceScatter::apply(y, sizes, std::move(own), dim, world, mode, group, timeout, origin);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return ops::reduce_scatter_sized(y, sizes, std::move(own), dim, world, mode, group, timeout, origin);
}

}  // namespace autograd

at::Tensor reduce_scatter(const at::Tensor& y, const at::Tensor& sizes, const reduce_scatter_options& options) {
  if (options.group.world() == 1) {
    translated([&] {
      const auto mode = options.op == reduce_op::mean ? gradient::mean : gradient::sum;
      return alone("reduce_scatter", y, sizes, options.dim, mode, seconds_of(options.timeout));
    });
    return alone_result(y);
  }
  if (const auto why = check_dispatched(y)) {
    translated([&] { refuse_for_all(*why, arguments_of(operation::reduce_scatter, options, /*sized=*/true)); });
  }
  const auto rows = rows_as_given(sizes);
  const auto rank = options.group.rank();
  // A row of sizes that is too short is the op's to refuse.
  const auto own = rows.scalar_type() == at::kLong && rows.dim() == 1 && rank < rows.size(0)
                       ? rows.const_data_ptr<std::int64_t>()[rank]
                       : 0;
  return ops::reduce_scatter_sized(y, rows, own, options.dim, options.group.world(),
                                   options.op == reduce_op::mean ? "mean" : "sum", options.group.name(),
                                   seconds_of(options.timeout), 0);
}

}  // namespace sheaf
