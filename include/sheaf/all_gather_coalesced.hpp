// SPDX-License-Identifier: MIT
// Several tensors of any dtypes and shapes gathered in one call: one exchange of headers, one payload, one backward.
#pragma once

#include <sheaf/all_gather.hpp>
#include <sheaf/per_tensor.hpp>

namespace sheaf {

struct all_gather_coalesced_options {
  per_tensor<std::int64_t> dim = 0;
  per_tensor<std::optional<at::Tensor>> sizes = std::nullopt;  // nothing: learned
  per_tensor<gradient> grad = gradient::sum;
  sheaf::group group = {};
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  // nothing: the group's
};

// One result a tensor, each as all_gather gives it. Gradients travel back in one call, and only those of tensors that
// need one. All ranks must agree on the number of tensors, and for each on what all_gather asks.
SHEAF_API std::vector<gathered> all_gather_coalesced(at::TensorList x,
                                                     const all_gather_coalesced_options& options = {});

// The same, started, as all_gather_async does.
SHEAF_API handle<std::vector<gathered>> all_gather_coalesced_async(at::TensorList x,
                                                                   const all_gather_coalesced_options& options = {});
inline void unpack(std::vector<at::Tensor> from, std::vector<gathered>& result) {
  const auto count = from.size() / 2;
  for (std::size_t i = 0; i < count; ++i) result.push_back({std::move(from[i]), std::move(from[count + i])});
}

}  // namespace sheaf
