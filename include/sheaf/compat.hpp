// SPDX-License-Identifier: MIT
// The functions of the padded helper that many models carry, under its names and with its meanings, on exact bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <sheaf/export.hpp>
#include <sheaf/group.hpp>
#include <utility>
#include <vector>

namespace sheaf::compat {

// Whether the group has more than one rank; asked anew at each call.
SHEAF_API bool is_distributed(const group& of = {});

// Zeros after the last row along `dim`, up to `length` rows.
SHEAF_API at::Tensor pad_dim_to(const at::Tensor& t, std::int64_t length, std::int64_t dim = 0);

// Every rank's tensor of one common shape (0-d as well). Never `t` itself.
SHEAF_API std::vector<at::Tensor> all_gather_same_dim(const at::Tensor& t, const group& of = {});

// Every rank's size along `dim`: int64, on the tensor's device.
SHEAF_API at::Tensor gather_sizes(const at::Tensor& t, std::int64_t dim, const group& of = {});

// Whether all entries equal the first: a 0-d bool tensor.
SHEAF_API at::Tensor has_only_one_value(const at::Tensor& t);

// The gathered tensor, without a gradient and never `t` itself, and the sizes.
SHEAF_API std::pair<at::Tensor, at::Tensor> all_gather_variable_dim(
    const at::Tensor& t, std::int64_t dim = 0, const std::optional<at::Tensor>& sizes = std::nullopt,
    const group& of = {});

// The same with a gradient: the own rows of the incoming one, or of its sum over all ranks.
class SHEAF_API AllGather {
 public:
  explicit AllGather(std::int64_t dim = 0, bool all_reduce_grads = false, group of = {});
  // No sizes where there is nobody to gather from.
  std::pair<at::Tensor, std::optional<at::Tensor>> operator()(
      const at::Tensor& x, const std::optional<at::Tensor>& sizes = std::nullopt) const;

 private:
  std::int64_t dim_;
  bool all_reduce_grads_;
  group group_;
};

// The own entry of one tensor per rank, and every entry's number of rows.
SHEAF_API std::pair<at::Tensor, at::Tensor> split_by_rank(const std::vector<at::Tensor>& x, const group& of = {});
SHEAF_API std::pair<at::Tensor, at::Tensor> split_by_rank(const at::Tensor& x, const group& of = {});

}  // namespace sheaf::compat
