// SPDX-License-Identifier: MIT
// all_gather: the kernels of its two ops (sizes learned, sizes given), their autograd, and the C++ call.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstring>
#include <numeric>
#include <sheaf/all_gather.hpp>

#include "core/copy.hpp"
#include "torch/collective.hpp"
#include "torch/errors.hpp"
#include "torch/nodes.hpp"
#include "torch/ops.hpp"
#include "torch/origin.hpp"
#include "torch/refusal.hpp"
#include "torch/valid.hpp"

namespace sheaf {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Blocks that all ride along with their headers: one round is the whole call.
bool is_small(const collective& run, const layout& at) {
  for (int rank = 0; rank < run.world(); ++rank) {
    if (!run.is_inlined(at.block_bytes(rank))) return false;
  }
  return true;
}

// The own block does not come from its frame: others are reading that.
void place_inlined(const layout& at, const heard& said, int own_rank, const at::Tensor& own, const at::Tensor& result) {
  for (int rank = 0; rank < static_cast<int>(said.world()); ++rank) {
    const auto block = rank == own_rank ? bytes_of(own) : said.payload(rank);
    check_inlined(rank, block.size(), at.block_bytes(rank));
    place(at, rank, block.data(), static_cast<std::byte*>(result.mutable_data_ptr()));
  }
}

at::Tensor placed(collective& run, const layout& at, std::int64_t dim, const at::Tensor& own, const heard& said) {
  auto result = run.allocate(own, dim, at.rows, at, true);
  place_inlined(at, said, run.rank(), own, result);
  return result;
}

at::Tensor moved(collective& run, const layout& at, std::int64_t dim, const at::Tensor& own) {
  auto result = run.allocate(own, dim, at.rows, at, false);
  run.all_gather(at, own, result);
  return result;
}

// gather_own: own rows in place, zero elsewhere. Local.
at::Tensor gather_own(const at::Tensor& x, const layout& at, int rank, std::int64_t dim) {
  auto result = empty_with_rows(x, dim, at.rows);
  if (!x.is_cpu()) {
    result.view({-1}).view(at::kByte).zero_();  // zero bytes, whatever the type
    result.narrow(dim, at.offsets[rank], at.sizes[rank]).copy_(x);
    return result;
  }
  std::memset(result.mutable_data_ptr(), 0, result.nbytes());
  place(at, rank, bytes_of(contiguous(x)).data(), static_cast<std::byte*>(result.mutable_data_ptr()));
  return result;
}

}  // namespace

namespace kernels {

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              std::string grad, std::string group, timeout_argument timeout) {
  return translated([&]() -> std::tuple<at::Tensor, at::Tensor> {
    collective run({.op = operation::all_gather, .mode = grad, .group = group, .world = world, .timeout = timeout});
    run.take(x, dim);
    run.describe(x, dim, recording_of(x));
    const auto own = contiguous(x);
    const bool inlined = run.is_inlined(static_cast<std::int64_t>(own.nbytes()));
    const auto& said = run.learn(inlined ? bytes_of(own) : std::span<const std::byte>());
    const auto at = run.place(said.rows_of());
    return {is_small(run, at) ? placed(run, at, dim, own, said) : moved(run, at, dim, own), sizes_tensor(at.sizes)};
  });
}

at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, std::string mode, std::string group, std::optional<std::string> grad,
                            timeout_argument timeout, std::int64_t origin, std::int64_t follows) {
  return translated([&] {
    const auto does = gradient_from(mode);
    const auto given = of_backward(origin, sizes);
    collective run({.op = operation::all_gather,
                    .mode = grad.value_or(mode),
                    .group = group,
                    .world = world,
                    .timeout = timeout,
                    .sized = true,
                    .local = does == gradient::own,
                    .origin = given.origin,
                    .follows = follows});
    run.take(x, dim);
    run.refuse_if(check_sizes(given.sizes, run.world()));
    const auto rows = sizes_of(given.sizes);
    run.refuse_if(check_own_size(rows, run.rank(), x.size(dim)));
    run.refuse_if(check_total(rows, total.expect_int(), "total is"));
    if (does == gradient::mean) run.refuse_if(check_reduction(x, gradient::mean));
    run.describe(x, dim, recording_of(x));
    run.give(rows);
    const auto at = run.place(rows);
    if (does == gradient::own) return gather_own(x, at, run.rank(), dim);

    const auto own = contiguous(does == gradient::mean ? divided(x, world) : x);
    if (is_small(run, at)) return placed(run, at, dim, own, run.learn(bytes_of(own)));
    run.learn_if_checked();
    return moved(run, at, dim, own);
  });
}

}  // namespace kernels

namespace autograd {
namespace {

// How the backward of one gather is called.
struct scatter_back {
  at::Tensor sizes;
  std::int64_t dim;
  std::int64_t world;
  std::string mode;
  std::string group;
  timeout_argument timeout;
  std::int64_t origin;
};

// Ties the result of a gather, which is there already, to its backward. `anchor` stands in for an input that needs no
// gradient on a rank whose peers need theirs: this rank takes part in the backward and discards.
struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& /*anchor*/,
                            const scatter_back& back, const std::tuple<at::Tensor>& gathered) {
    ctx->save_for_backward({back.sizes});
    ctx->saved_data["own"] = x.sym_size(back.dim);
    ctx->saved_data["dim"] = back.dim;
    ctx->saved_data["world"] = back.world;
    ctx->saved_data["mode"] = back.mode;
    ctx->saved_data["group"] = back.group;
    ctx->saved_data["timeout"] = back.timeout;
    ctx->saved_data["origin"] = back.origin;
    return std::get<0>(gathered);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& saved = ctx->saved_data;
    auto own = ops::reduce_scatter_sized(grads[0], ctx->get_saved_variables()[0], saved["own"].toSymInt(),
                                         saved["dim"].toInt(), saved["world"].toInt(), saved["mode"].toStringRef(),
                                         saved["group"].toStringRef(), saved["timeout"].toOptional<double>(),
                                         saved["origin"].toInt());
    return {std::move(own), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};
[[maybe_unused]] const bool offered = offer_node(typeid(torch::autograd::CppNode<AllGather>));

}  // namespace

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              std::string grad, std::string group, timeout_argument timeout) {
  last_outcome() = {};  // a compiler's trace runs no kernel that would set it
  auto [gathered, sizes] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::all_gather(x, dim, world, grad, group, timeout);
  }();
  const auto said = std::exchange(last_outcome(), {});
  const bool others = grad != "own" && said.any_rank_records;
  if (!c10::GradMode::is_enabled() || !(x.requires_grad() || others)) return {gathered, sizes};
  const auto anchor = x.requires_grad() ? std::nullopt : std::optional(at::empty({0}).requires_grad_());
  const auto back = for_backward(said, {0, sizes}, grad);
  auto tied = AllGather::apply(x, anchor, scatter_back{back.sizes, dim, world, grad, group, timeout, back.origin},
                               std::tuple(gathered));
  return {tied, sizes};
}

at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, std::string mode, std::string group, std::optional<std::string> grad,
                            timeout_argument timeout, std::int64_t origin, std::int64_t follows) {
  last_outcome() = {};
  auto gathered = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return ops::all_gather_sized(x, sizes, std::move(total), dim, world, mode, group, grad, timeout, origin, follows);
  }();
  const auto said = std::exchange(last_outcome(), {});
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return gathered;
  const auto back = for_backward(said, {origin, sizes}, grad.value_or(mode));
  return AllGather::apply(x, std::optional<at::Tensor>(),
                          scatter_back{back.sizes, dim, world, grad.value_or(mode), group, timeout, back.origin},
                          std::tuple(gathered));
}

at::Tensor tie_own(const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim, std::int64_t world,
                   const std::string& group, const at::Tensor& gathered) {
  return AllGather::apply(x, std::optional<at::Tensor>(),
                          scatter_back{kept_sizes(sizes), dim, world, "own", group, std::nullopt, 0},
                          std::tuple(gathered));
}

}  // namespace autograd

gathered all_gather(const at::Tensor& x, const all_gather_options& options) {
  if (options.valid) return gather_valid(x, options);
  const auto group = options.group.name();
  const std::int64_t world = options.group.world();
  const std::string grad(name(options.grad));
  const auto timeout = seconds_of(options.timeout);
  if (world == 1) {
    auto sizes = translated([&] { return alone("all_gather", x, options.sizes, options.dim, options.grad, timeout); });
    return {alone_result(x), std::move(sizes)};
  }
  if (const auto why = check_dispatched(x)) {
    translated([&] { refuse_for_all(*why, arguments_of(operation::all_gather, options, options.sizes.has_value())); });
  }
  if (!options.sizes) {
    auto [tensor, sizes] = ops::all_gather(x, options.dim, world, grad, group, timeout);
    return {std::move(tensor), std::move(sizes)};
  }
  const auto sizes = rows_as_given(*options.sizes);
  const auto total = sizes.scalar_type() == at::kLong ? sizes.sum().item<std::int64_t>() : 0;
  return {ops::all_gather_sized(x, sizes, total, options.dim, world, "sum", group, grad, timeout, 0, 0), sizes};
}

std::vector<at::Tensor> split(const at::Tensor& gathered, const at::Tensor& sizes, std::int64_t dim) {
  return translated([&] {
    const auto rows = sizes_of(sizes);
    if (const auto why = check_tensor(gathered, dim)) throw value_error("split: " + *why);
    if (const auto why = check_sizes(sizes, static_cast<int>(rows.size()))) throw value_error("split: " + *why);
    if (const auto why = check_total(rows, gathered.size(dim), "the gathered tensor has")) {
      throw value_error("split: " + *why);
    }
    return gathered.split_with_sizes(rows, dim);
  });
}

std::int64_t offset(const at::Tensor& sizes, const group& of) {
  return translated([&] {
    if (const auto why = check_sizes(sizes, of.world())) throw value_error("offset: " + *why);
    const auto rows = sizes_of(sizes);
    return std::accumulate(rows.begin(), rows.begin() + of.rank(), std::int64_t{0});
  });
}

}  // namespace sheaf
