// SPDX-License-Identifier: MIT
// An engine's memory as an ordinary tensor: it can be written, resized, pickled, shared and outlive everything.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/engine.hpp"

namespace sheaf {

at::Tensor tensor_over(memory bytes, at::IntArrayRef shape, const at::TensorOptions& options);

// Uninitialised, on the CPU. Small ones come and go with every call: their memory is what this thread dropped before,
// and at most some hundred KiB are kept so.
inline constexpr std::size_t small_bytes = 4096;
at::Tensor small_tensor(at::IntArrayRef shape, at::ScalarType type);

}  // namespace sheaf
