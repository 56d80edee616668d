// SPDX-License-Identifier: MIT
// The adjoint of all_gather: a sum over ranks, of which each keeps its own rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <sheaf/export.hpp>
#include <sheaf/group.hpp>
#include <sheaf/handle.hpp>

namespace sheaf {

enum class reduce_op : std::uint8_t { sum, mean };

struct reduce_scatter_options {
  std::int64_t dim = 0;
  reduce_op op = reduce_op::sum;
  sheaf::group group = {};
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};

// Rank r receives rows [offset_r, offset_r + sizes[r]) of the sum over all ranks' `y` along `dim`. Sums run in rank
// order, float16, bfloat16 and float8 in float32. All ranks must agree on everything but the values.
SHEAF_API at::Tensor reduce_scatter(const at::Tensor& y, const at::Tensor& sizes,
                                    const reduce_scatter_options& options = {});

// The same, started: see all_gather_async.
SHEAF_API handle<at::Tensor> reduce_scatter_async(const at::Tensor& y, const at::Tensor& sizes,
                                                  const reduce_scatter_options& options = {});

}  // namespace sheaf
