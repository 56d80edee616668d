// SPDX-License-Identifier: MIT
// sheaf_bench::noop: the signature of sheaf::all_gather, registered in the same way, and nothing behind it but two
// fresh tensors. What remains of a call's time above this is Sheaf's own.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using two_tensors = std::tuple<at::Tensor, at::Tensor>;

two_tensors noop_kernel(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string /*grad*/,
                        std::string /*group*/, std::optional<double> /*timeout*/) {
  auto shape = x.sizes().vec();
  shape.at(dim) *= world;
  return {at::empty(shape, x.options()), at::empty({world}, at::kLong)};
}

struct Noop : torch::autograd::Function<Noop> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t dim,
                            const std::tuple<at::Tensor>& result) {
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["own"] = x.sym_size(dim);
    return std::get<0>(result);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    auto& saved = ctx->saved_data;
    return {grads[0].narrow_symint(saved["dim"].toInt(), 0, saved["own"].toSymInt()), at::Tensor(), at::Tensor()};
  }
};

two_tensors noop_autograd(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string grad,
                          std::string group, std::optional<double> timeout) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("sheaf_bench::noop", "").typed<decltype(noop_kernel)>();
  auto [result, sizes] = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return op.call(x, dim, world, grad, group, timeout);
  }();
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) return {result, sizes};
  return {Noop::apply(x, dim, std::tuple(result)), sizes};
}

}  // namespace

TORCH_LIBRARY(sheaf_bench, library) {
  library.def("noop(Tensor x, int dim, int world, str grad, str group, *, float? timeout=None) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(sheaf_bench, CompositeExplicitAutograd, library) { library.impl("noop", noop_kernel); }

TORCH_LIBRARY_IMPL(sheaf_bench, Autograd, library) { library.impl("noop", noop_autograd); }
