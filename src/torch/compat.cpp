// SPDX-License-Identifier: MIT
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <sheaf/all_gather.hpp>
#include <sheaf/compat.hpp>

namespace sheaf::compat {
namespace {

// Without a wait for the device.
at::Tensor on_device_of(const at::Tensor& x, const at::Tensor& sizes) {
  if (!x.is_cuda()) return sizes.to(x.device());
  return sizes.pin_memory().to(x.device(), /*non_blocking=*/true);
}

// Without a gradient, and never the input itself.
gathered not_the_input(const at::Tensor& t, all_gather_options options) {
  const c10::NoGradGuard no_grad;
  auto result = sheaf::all_gather(t, options);
  if (options.group.world() == 1) result.tensor = result.tensor.clone();
  return result;
}

}  // namespace

bool is_distributed(const group& of) { return of.world() > 1; }

at::Tensor pad_dim_to(const at::Tensor& t, std::int64_t length, std::int64_t dim) {
  const auto behind = dim < 0 ? -dim - 1 : t.dim() - dim - 1;
  std::vector<std::int64_t> pad(2 * behind + 2, 0);
  pad.back() = length - t.size(dim);
  return at::constant_pad_nd(t, pad, 0);
}

std::vector<at::Tensor> all_gather_same_dim(const at::Tensor& t, const group& of) {
  const c10::NoGradGuard no_grad;
  const auto ones = at::full({of.world()}, 1, at::kLong);
  return not_the_input(t.unsqueeze(0), {.sizes = ones, .group = of}).tensor.unbind(0);
}

at::Tensor gather_sizes(const at::Tensor& t, std::int64_t dim, const group& of) {
  // One number per rank: what else the tensors are is not compared.
  const auto rows = at::empty({t.size(dim), 0}, t.options().dtype(at::kByte));  // of a device that the group carries
  return on_device_of(t, sheaf::gather_sizes(rows, {.group = of}));
}

at::Tensor has_only_one_value(const at::Tensor& t) { return t.eq(t.select(0, 0)).all(); }

std::pair<at::Tensor, at::Tensor> all_gather_variable_dim(const at::Tensor& t, std::int64_t dim,
                                                          const std::optional<at::Tensor>& sizes, const group& of) {
  auto [tensor, learned] = not_the_input(t, {.dim = dim, .sizes = sizes, .group = of});
  return {tensor, sizes ? *sizes : on_device_of(t, learned)};
}

AllGather::AllGather(std::int64_t dim, bool all_reduce_grads, group of)
    : dim_(dim), all_reduce_grads_(all_reduce_grads), group_(std::move(of)) {}

std::pair<at::Tensor, std::optional<at::Tensor>> AllGather::operator()(const at::Tensor& x,
                                                                       const std::optional<at::Tensor>& sizes) const {
  if (!is_distributed(group_)) return {x, std::nullopt};
  const auto grad = all_reduce_grads_ ? gradient::sum : gradient::own;
  auto [tensor, learned] = sheaf::all_gather(x, {.dim = dim_, .sizes = sizes, .grad = grad, .group = group_});
  return {tensor, sizes ? *sizes : on_device_of(x, learned)};
}

std::pair<at::Tensor, at::Tensor> split_by_rank(const std::vector<at::Tensor>& x, const group& of) {
  std::vector<std::int64_t> rows;
  for (const auto& entry : x) rows.push_back(entry.size(0));
  const auto& own = x.at(of.rank());
  return {own, on_device_of(own, at::tensor(rows, at::kLong))};
}

std::pair<at::Tensor, at::Tensor> split_by_rank(const at::Tensor& x, const group& of) {
  const auto own = x.select(0, of.rank());
  return {own, on_device_of(own, at::full({x.size(0)}, x.size(1), at::kLong))};
}

}  // namespace sheaf::compat
