// SPDX-License-Identifier: MIT
// Every op's asynchronous call, by its arguments as the ops take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <sheaf/handle.hpp>
#include <string>

#include "torch/ops.hpp"

namespace sheaf::async {

// Tensors: the gathered one and the sizes.
std::shared_ptr<call_under_way> start_all_gather(const at::Tensor& x, const std::optional<at::Tensor>& sizes,
                                                 std::int64_t dim, std::int64_t world, const std::string& grad,
                                                 const std::string& group, timeout_argument timeout);
std::shared_ptr<call_under_way> start_reduce_scatter(const at::Tensor& y, const at::Tensor& sizes, std::int64_t dim,
                                                     std::int64_t world, const std::string& mode,
                                                     const std::string& group, timeout_argument timeout);
// Tensors: the gathered ones, then the sizes of each. Given sizes are as the ops take them: a row may be missing.
std::shared_ptr<call_under_way> start_all_gather_coalesced(at::TensorList x, const std::optional<at::Tensor>& sizes,
                                                           at::IntArrayRef dim, std::int64_t world,
                                                           const mode_list& grad, const std::string& group,
                                                           timeout_argument timeout);
std::shared_ptr<call_under_way> start_reduce_scatter_coalesced(at::TensorList y, const at::Tensor& sizes,
                                                               at::IntArrayRef dim, std::int64_t world,
                                                               const mode_list& mode, const std::string& group,
                                                               timeout_argument timeout);

}  // namespace sheaf::async
