// SPDX-License-Identifier: MIT
// Rows that are valid, from blocks of equal rows to the front of the result, and back: all on the tensor's device.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "torch/check.hpp"
#include "torch/errors.hpp"
#include "torch/ops.hpp"
#include "torch/tensors.hpp"

namespace sheaf {
namespace {

// Row i of what is made is row from[i], or zero where there is none; such rows stand for themselves.
struct route {
  at::Tensor from;
  at::Tensor is_there;
};

struct blocks_of {
  blocks_of(const at::Tensor& sizes, std::int64_t rows)
      : world(sizes.size(0)),
        capacity(std::max<std::int64_t>(rows / world, 1)),
        ends(sizes.cumsum(0)),
        starts(ends - sizes),
        row(at::arange(rows, sizes.options())) {}

  std::int64_t world, capacity;
  at::Tensor ends, starts;  // of each rank's valid rows, one after another
  at::Tensor row;
};

route to_front(const at::Tensor& sizes, std::int64_t rows) {
  const blocks_of all(sizes, rows);
  const auto owner = at::bucketize(all.row, all.ends, /*out_int32=*/false, /*right=*/true).clamp_max(all.world - 1);
  const auto is_valid = all.row.lt(all.ends.select(0, all.world - 1));
  const auto from = owner * all.capacity + all.row - all.starts.index_select(0, owner);
  return {at::where(is_valid, from, all.row), is_valid};
}

route to_blocks(const at::Tensor& sizes, std::int64_t rows) {
  const blocks_of all(sizes, rows);
  const auto rank = all.row.floor_divide(all.capacity);
  const auto inside = all.row - rank * all.capacity;
  const auto is_used = inside.lt(sizes.index_select(0, rank));
  return {at::where(is_used, all.starts.index_select(0, rank) + inside, all.row), is_used};
}

// Rows move as integers of their elements' size, which torch can index whatever the type.
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

at::Tensor moved(const at::Tensor& x, const route& by, std::int64_t dim) {
  const auto words = contiguous(x).unsqueeze(-1).view(word_of(x.element_size()));
  std::vector<std::int64_t> shape(words.dim(), 1);
  shape[dim] = x.size(dim);
  auto rows = words.index_select(dim, by.from);
  rows.masked_fill_(by.is_there.logical_not().view(shape), 0);
  return rows.view(x.scalar_type()).squeeze(-1);
}

// What the sizes are is on the device: only how many.
refusal check(const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim) {
  if (const auto why = check_tensor(x, dim)) return why;
  if (dim < 0) return "dim must be from 0 to " + std::to_string(x.dim() - 1);
  if (sizes.dim() != 1 || sizes.scalar_type() != at::kLong || sizes.device() != x.device()) {
    return "sizes must be int64 and 1-d, on the tensor's device";
  }
  if (sizes.size(0) > 0 && x.size(dim) % sizes.size(0) == 0) return std::nullopt;
  return std::to_string(x.size(dim)) + " rows are not blocks of equal rows of " + std::to_string(sizes.size(0)) +
         " ranks";
}

using router = route (*)(const at::Tensor& sizes, std::int64_t rows);

at::Tensor routed(const char* op, router by, const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim) {
  return translated([&] {
    if (const auto why = check(x, sizes, dim)) throw value_error(std::string(op) + ": " + *why);
    return moved(x, by(sizes, x.size(dim)), dim);
  });
}

}  // namespace

at::Tensor kernels::compact(const at::Tensor& blocks, const at::Tensor& sizes, std::int64_t dim) {
  return routed("compact", to_front, blocks, sizes, dim);
}

at::Tensor kernels::spread(const at::Tensor& rows, const at::Tensor& sizes, std::int64_t dim) {
  return routed("spread", to_blocks, rows, sizes, dim);
}

namespace autograd {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <const auto& op>
at::Tensor below(const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op(x, sizes, dim);
}

template <const auto& op, const auto& adjoint>
struct MoveRows : torch::autograd::Function<MoveRows<op, adjoint>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim) {
    ctx->save_for_backward({sizes});
    ctx->saved_data["dim"] = dim;
    return below<op>(x, sizes, dim);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list inputs(3);
    inputs[0] = adjoint(grads[0], ctx->get_saved_variables()[0], ctx->saved_data["dim"].toInt());
    return inputs;
  }
};

template <const auto& op, const auto& adjoint>
at::Tensor recorded(const at::Tensor& x, const at::Tensor& sizes, std::int64_t dim) {
  if (c10::GradMode::is_enabled() && x.requires_grad()) return MoveRows<op, adjoint>::apply(x, sizes, dim);
  return below<op>(x, sizes, dim);
}

}  // namespace

at::Tensor compact(const at::Tensor& blocks, const at::Tensor& sizes, std::int64_t dim) {
  return recorded<ops::compact, ops::spread>(blocks, sizes, dim);
}

at::Tensor spread(const at::Tensor& rows, const at::Tensor& sizes, std::int64_t dim) {
  return recorded<ops::spread, ops::compact>(rows, sizes, dim);
}

}  // namespace autograd
}  // namespace sheaf
