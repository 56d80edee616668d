// SPDX-License-Identifier: MIT
// Every op as a typed call through the dispatcher, and the kernels and autograd that library.cpp registers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

namespace sheaf {

using timeout_argument = std::optional<double>;

namespace ops {  // through the dispatcher

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              const std::string& grad, const std::string& group,
                                              timeout_argument timeout);
at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, const std::string& mode, const std::string& group,
                            const std::optional<std::string>& grad, timeout_argument timeout, std::int64_t origin);
at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, const std::string& mode, const std::string& group,
                                timeout_argument timeout, std::int64_t origin);
at::Tensor gather_sizes(const at::Tensor& x, std::int64_t dim, std::int64_t world, const std::string& group,
                        timeout_argument timeout);

}  // namespace ops

namespace kernels {

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              std::string grad, std::string group, timeout_argument timeout);
at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, std::string mode, std::string group, std::optional<std::string> grad,
                            timeout_argument timeout, std::int64_t origin);
at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, std::string mode, std::string group, timeout_argument timeout,
                                std::int64_t origin);
at::Tensor gather_sizes(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string group,
                        timeout_argument timeout);

}  // namespace kernels

namespace autograd {

std::tuple<at::Tensor, at::Tensor> all_gather(const at::Tensor& x, std::int64_t dim, std::int64_t world,
                                              std::string grad, std::string group, timeout_argument timeout);
at::Tensor all_gather_sized(const at::Tensor& x, const at::Tensor& sizes, c10::SymInt total, std::int64_t dim,
                            std::int64_t world, std::string mode, std::string group, std::optional<std::string> grad,
                            timeout_argument timeout, std::int64_t origin);
at::Tensor reduce_scatter_sized(const at::Tensor& y, const at::Tensor& sizes, c10::SymInt own, std::int64_t dim,
                                std::int64_t world, std::string mode, std::string group, timeout_argument timeout,
                                std::int64_t origin);

}  // namespace autograd
}  // namespace sheaf
