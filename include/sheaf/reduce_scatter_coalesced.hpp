// SPDX-License-Identifier: MIT
// The adjoint of all_gather_coalesced: sums over ranks of several tensors in one call.
#pragma once

#include <sheaf/per_tensor.hpp>
#include <sheaf/reduce_scatter.hpp>
#include <vector>

namespace sheaf {

struct reduce_scatter_coalesced_options {
  per_tensor<std::int64_t> dim = 0;
  per_tensor<reduce_op> op = reduce_op::sum;
  sheaf::group group = {};
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

// The own rows of each tensor's sum, as reduce_scatter gives them, to the bit.
SHEAF_API std::vector<at::Tensor> reduce_scatter_coalesced(at::TensorList y, const per_tensor<at::Tensor>& sizes,
                                                           const reduce_scatter_coalesced_options& options = {});

// The same, started: see all_gather_async.
SHEAF_API handle<std::vector<at::Tensor>> reduce_scatter_coalesced_async(
    at::TensorList y, const per_tensor<at::Tensor>& sizes, const reduce_scatter_coalesced_options& options = {});

}  // namespace sheaf
