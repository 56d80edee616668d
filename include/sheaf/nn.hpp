// SPDX-License-Identifier: MIT
// all_gather as a torch module. Not part of sheaf.hpp: torch's module headers cost seconds to compile.
#pragma once

#include <torch/csrc/api/include/torch/arg.h>
#include <torch/csrc/api/include/torch/nn/cloneable.h>
#include <torch/csrc/api/include/torch/nn/modules/common.h>
#include <torch/csrc/api/include/torch/nn/modules/container/any_value.h>
#include <torch/csrc/api/include/torch/nn/pimpl.h>

#include <sheaf/all_gather.hpp>

namespace sheaf::nn {

struct AllGatherOptions {
  AllGatherOptions(std::int64_t dim = 0) : dim_(dim) {}  // NOLINT: torch's options convert from their first argument
  TORCH_ARG(std::int64_t, dim) = 0;
  TORCH_ARG(gradient, grad) = gradient::sum;
  TORCH_ARG(sheaf::group, group) = {};
};

class SHEAF_API AllGatherImpl : public torch::nn::Cloneable<AllGatherImpl> {
 public:
  explicit AllGatherImpl(AllGatherOptions options = {}) : options(std::move(options)) {}

  gathered forward(const at::Tensor& x, const std::optional<at::Tensor>& sizes = std::nullopt);
  void reset() override {}  // nothing to learn
  void pretty_print(std::ostream& stream) const override;

  AllGatherOptions options;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<at::Tensor>())})  // in a Sequential
};

TORCH_MODULE(AllGather);

}  // namespace sheaf::nn
