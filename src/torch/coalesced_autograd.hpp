// SPDX-License-Identifier: MIT
// The node of a coalesced call: one for all tensors whose gradients travel, so that their backward is one collective.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <tuple>
#include <vector>

#include "torch/ops.hpp"
#include "torch/origin.hpp"

namespace sheaf::autograd {

// How the backward of one call is called.
struct coalesced_back {
  at::Tensor sizes;                  // (tensors, ranks), and what for_backward() puts behind them
  std::vector<c10::SymInt> extents;  // rows of the gradients
  std::vector<std::int64_t> dims;
  std::int64_t world;
  std::vector<std::string> modes;
  std::string group;
  timeout_argument timeout;
  std::int64_t origin = 0;

  void take(origin_and_sizes from) {
    sizes = std::move(from.sizes);
    origin = from.origin;
  }
};

inline mode_list as_list(const std::vector<std::string>& modes) {
  mode_list list;
  for (const auto& mode : modes) list.push_back(mode);
  return list;
}

// Ties results, which are there already, to their backward, which Op::call is. `anchor` stands in where no input needs
// a gradient on this rank but the others need theirs.
template <class Op>
struct Coalesced : torch::autograd::Function<Coalesced<Op>> {
  using context = torch::autograd::AutogradContext;
  using variable_list = torch::autograd::variable_list;

  static variable_list forward(context* ctx, at::TensorList inputs, const std::optional<at::Tensor>& /*anchor*/,
                               const coalesced_back& back, const std::tuple<variable_list>& results) {
    ctx->save_for_backward({back.sizes});
    ctx->saved_data["inputs"] = static_cast<std::int64_t>(inputs.size());
    ctx->saved_data["extents"] = c10::IValue(back.extents);
    ctx->saved_data["dims"] = back.dims;
    ctx->saved_data["world"] = back.world;
    ctx->saved_data["modes"] = as_list(back.modes);
    ctx->saved_data["group"] = back.group;
    ctx->saved_data["timeout"] = back.timeout;
    ctx->saved_data["origin"] = back.origin;
    return std::get<0>(results);
  }

  static variable_list backward(context* ctx, const variable_list& grads) {
    auto& saved = ctx->saved_data;
    coalesced_back back{.sizes = ctx->get_saved_variables()[0],
                        .extents = saved["extents"].toSymIntVector(),
                        .dims = saved["dims"].toIntVector(),
                        .world = saved["world"].toInt(),
                        .modes = saved["modes"].template to<std::vector<std::string>>(),
                        .group = saved["group"].toStringRef(),
                        .timeout = saved["timeout"].template toOptional<double>(),
                        .origin = saved["origin"].toInt()};
    auto inputs = Op::call(grads, back);
    inputs.resize(saved["inputs"].toInt() + 3);  // for the anchor, and what is no tensor
    return inputs;
  }
};

// The sizes of some of the tensors.
at::Tensor rows_of_some(const at::Tensor& sizes, const std::vector<std::size_t>& which);

}  // namespace sheaf::autograd
