// SPDX-License-Identifier: MIT
// Which call a backward differentiates. A compiler's trace comes before the call that it traces, so its backward is
// given the number when it runs, in one row more behind the sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "torch/collective.hpp"

namespace sheaf {

// As ops take it: the sizes have a row more.
inline constexpr std::int64_t behind_sizes = -1;

struct origin_and_sizes {
  std::int64_t origin;
  at::Tensor sizes;
};
// What the backward, of that mode, of a call is given; the call itself was given `own`.
origin_and_sizes for_backward(const outcome& said, const origin_and_sizes& own, std::string_view mode);
// The call that it differentiates, and the sizes by themselves.
origin_and_sizes of_backward(std::int64_t origin, const at::Tensor& sizes);

}  // namespace sheaf
