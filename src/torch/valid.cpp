// SPDX-License-Identifier: MIT
#include "torch/valid.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sheaf/error.hpp>

#include "core/text.hpp"
#include "core/work.hpp"
#include "torch/collective.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"
#include "torch/ops.hpp"

namespace sheaf {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What is known of one group.
struct state {
  std::weak_ptr<engine> of;
  std::set<std::string> seen;  // kinds of buffers that were gathered before: others must not be captured
  std::map<std::string, at::Tensor> alarms{};  // by device: whether a count was beyond its buffer
};

// Held by whoever looks at it.
struct locked_state {
  explicit locked_state(const std::shared_ptr<engine>& of) : lock(mutex()), now(find(of)) {}

  static std::mutex& mutex() {
    static std::mutex guards_all;
    return guards_all;
  }
  static state& find(const std::shared_ptr<engine>& of) {
    static std::map<const engine*, state> all;
    std::erase_if(all, [](const auto& one) { return one.second.of.expired(); });
    auto& found = all[of.get()];
    found.of = of;
    return found;
  }

  const std::lock_guard<std::mutex> lock;
  state& now;
};

// Moved as integers of their size, which torch can index whatever the type.
at::ScalarType word_of(std::size_t itemsize) {
  switch (itemsize) {
    case 1:
      return at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

at::Tensor moved(const at::Tensor& x, std::int64_t dim, const at::Tensor& source, const at::Tensor& is_valid) {
  const auto words = contiguous(x).unsqueeze(-1).view(word_of(x.element_size()));
  std::vector<std::int64_t> shape(words.dim(), 1);
  shape[dim] = x.size(dim);
  const auto zero = at::zeros({}, words.options());
  return at::where(is_valid.view(shape), words.index_select(dim, source), zero).view(x.scalar_type()).squeeze(-1);
}

// Row i of the result is row source[i], or zero where it is not valid; the gradient goes the other way.
struct MoveRows : torch::autograd::Function<MoveRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t dim, const at::Tensor& source,
                            const at::Tensor& is_valid, const at::Tensor& target, const at::Tensor& is_used) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ctx->saved_data["dim"] = dim;
    ctx->save_for_backward({source, is_valid, target, is_used});
    return moved(x, dim, source, is_valid);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto ways = ctx->get_saved_variables();
    variable_list inputs(6);
    inputs[0] = apply(grads[0], ctx->saved_data["dim"].toInt(), ways[2], ways[3], ways[0], ways[1]);
    return inputs;
  }
};

// Of blocks of equal rows, one after another along `dim`, the first sizes[r] rows of each, then zeros.
at::Tensor compacted(const at::Tensor& blocks, const at::Tensor& sizes, std::int64_t dim) {
  const auto world = sizes.size(0);
  const auto capacity = blocks.size(dim) / world;
  const auto ends = sizes.cumsum(0);
  const auto starts = ends - sizes;
  const auto row = at::arange(blocks.size(dim), sizes.options());
  // Rows that come from nowhere, or go nowhere, are zero and stand for themselves.
  const auto owner = at::bucketize(row, ends, /*out_int32=*/false, /*right=*/true).clamp_max(world - 1);
  const auto is_valid = row.lt(ends.select(0, world - 1));
  const auto source = at::where(is_valid, owner * capacity + row - starts.index_select(0, owner), row);
  const auto rank = row.floor_divide(std::max<std::int64_t>(capacity, 1));
  const auto inside = row - rank * capacity;
  const auto is_used = inside.lt(sizes.index_select(0, rank));
  const auto target = at::where(is_used, starts.index_select(0, rank) + inside, row);
  return MoveRows::apply(blocks, dim, source, is_valid, target, is_used);
}

refusal check_valid(const at::Tensor& x, const all_gather_options& options) {
  const auto& valid = *options.valid;
  if (options.sizes) return "sizes and valid cannot both be given";
  if (const auto why = check_dispatched(x)) return why;
  if (const auto why = check_tensor(x, options.dim)) return why;
  if (!valid.defined() || !c10::isIntegralType(valid.scalar_type(), /*includeBool=*/false) || valid.numel() != 1) {
    return "valid must be a tensor of one integer";
  }
  if (valid.device() == x.device()) return std::nullopt;
  return "valid must be on the tensor's device, " + x.device().str() + ", got " + valid.device().str();
}

std::string kind_of(const at::Tensor& x, std::int64_t dim) {
  return list(x.sizes().vec()) + std::to_string(dim) + c10::toString(x.scalar_type()) + x.device().str();
}

at::Tensor alarm_on(state& now, const at::Tensor& x) {
  auto& alarm = now.alarms[x.device().str()];
  const c10::InferenceMode off(false);  // calls outside of that mode write into it, too
  if (!alarm.defined()) alarm = at::zeros({}, x.options().dtype(at::kBool).requires_grad(false));
  return alarm;
}

// Every eager call compares capacities, on the host, and looks whether an earlier count was too large.
at::Tensor prepared_alarm(const std::shared_ptr<engine>& moves, const at::Tensor& x, std::int64_t dim,
                          const std::string& group, timeout_argument timeout) {
  const auto* work = find_work(device_from(x.device().type()));
  if (work && work->is_capturing()) {
    locked_state known(moves);
    if (known.now.seen.contains(kind_of(x, dim))) return alarm_on(known.now, x);
    throw value_error("all_gather: call with valid once before it is captured: the call sets up what it needs");
  }
  if (moves->world() > 1) {
    const auto rows = sizes_of(ops::gather_sizes(x, dim, moves->world(), group, timeout));
    if (std::ranges::any_of(rows, [&](auto count) { return count != rows[0]; })) {
      throw value_error("all_gather: with valid all ranks' buffers must have the same rows, got " + list(rows));
    }
  }
  const auto alarm = [&] {
    locked_state known(moves);
    known.now.seen.insert(kind_of(x, dim));
    return alarm_on(known.now, x);
  }();
  // Graphs may run on any stream, and all ranks must see the same.
  if (!x.is_cpu()) c10::impl::VirtualGuardImpl(x.device().type()).synchronizeDevice(x.device().index());
  if (!alarm.item<bool>()) return alarm;
  alarm.zero_();
  throw value_error(
      "all_gather: in an earlier call a rank's `valid` was negative or beyond its buffer's rows, and was clamped");
}

}  // namespace

gathered gather_valid(const at::Tensor& x, const all_gather_options& options) {
  const auto group = options.group.name();
  const auto timeout = seconds_of(options.timeout);
  const auto moves = translated([&] { return find_engine(group); });
  const std::int64_t world = moves->world();
  if (const auto why = check_valid(x, options)) {
    translated([&] {
      if (world > 1) refuse_for_all(operation::all_gather, *why, group, false);
      throw value_error("all_gather: " + *why);
    });
  }
  const auto dim = options.dim < 0 ? options.dim + x.dim() : options.dim;
  const auto capacity = x.size(dim);
  const auto alarm = translated([&] { return prepared_alarm(moves, x, dim, group, timeout); });
  auto given = options.valid->detach().reshape({1}).to(at::kLong);
  auto blocks = x;
  if (world > 1) {
    const auto ones = at::full({world}, 1, at::kLong);
    const std::string grad(name(options.grad));
    given = ops::all_gather_sized(given, ones, world, 0, world, "sum", group, "own", timeout, 0);
    blocks = ops::all_gather_sized(x, ones * capacity, world * capacity, dim, world, "sum", group, grad, timeout, 0);
  }
  const auto sizes = given.clamp(0, capacity);
  alarm.logical_or_(sizes.ne(given).any());
  return {compacted(blocks, sizes, dim), sizes};
}

}  // namespace sheaf
