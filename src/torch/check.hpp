// SPDX-License-Identifier: MIT
// Check: what one rank can see by itself. Each returns why the argument is refused, or nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "core/header.hpp"

namespace sheaf {

using refusal = std::optional<std::string>;

refusal check_tensor(const at::Tensor& x, std::int64_t dim);
refusal check_sizes(const at::Tensor& sizes, int world);
refusal check_own_size(const std::vector<std::int64_t>& sizes, int rank, std::int64_t rows);
refusal check_total(const std::vector<std::int64_t>& sizes, std::int64_t total, const char* what);
refusal check_reduction(const at::Tensor& y, gradient mode);
refusal check_timeout(std::optional<double> seconds);

// `carried`: whether the group's engine takes tensors on its device.
refusal check_carried(const at::Tensor& x, bool carried);
// Tensors for which torch calls no kernel of Sheaf's, or another's.
refusal check_dispatched(const at::Tensor& x);

// A group of one: runs every local check of `op` and returns the sizes. Throws value_error.
at::Tensor alone(const std::string& op, const at::Tensor& x, const std::optional<at::Tensor>& sizes, std::int64_t dim,
                 gradient mode, std::optional<double> timeout);

// Of tensors that passed.
record record_of(const at::Tensor& x, std::int64_t dim);
std::vector<std::int64_t> sizes_of(const at::Tensor& sizes);

// On the CPU; int64 where they are integers, so that anything else is the op's to refuse.
at::Tensor rows_as_given(const at::Tensor& sizes);

// For a backward to keep: torch keeps no tensor of inference mode.
at::Tensor kept_sizes(const at::Tensor& sizes);

// Throws value_error for anything but sum, mean and own.
gradient gradient_from(std::string_view text);

}  // namespace sheaf
