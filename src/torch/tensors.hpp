// SPDX-License-Identifier: MIT
// Tensors as calls take them in and hand them out.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "core/engine.hpp"

namespace sheaf {

// Rows by rank as an int64 tensor on the CPU.
at::Tensor sizes_tensor(const std::vector<std::int64_t>& rows);
// `x` as plain contiguous bytes: no lazy conjugation or negation.
at::Tensor contiguous(const at::Tensor& x);
memory memory_of(const at::Tensor& contiguous);
std::span<const std::byte> bytes_of(const at::Tensor& contiguous);
// A tensor like this one with `rows` along dim, in these bytes or, where there are none, in fresh memory.
at::Tensor tensor_in(memory bytes, const at::Tensor& like, std::int64_t dim, std::int64_t rows);
// An uninitialised tensor like x with `rows` along dim, contiguous.
at::Tensor empty_with_rows(const at::Tensor& x, std::int64_t dim, std::int64_t rows);
// The own tensor as the result of a group of one.
at::Tensor alone_result(const at::Tensor& x);
// As sums are divided: narrow types in float32, complex ones by their parts.
at::Tensor divided(const at::Tensor& x, std::int64_t world);

}  // namespace sheaf
