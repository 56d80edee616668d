// SPDX-License-Identifier: MIT
// An engine's memory as an ordinary tensor: it can be written, resized, pickled, shared and outlive everything.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/engine.hpp"

namespace sheaf {

at::Tensor tensor_over(memory bytes, at::IntArrayRef shape, const at::TensorOptions& options);

// Uninitialised, on the CPU, of at most small::most_bytes.
at::Tensor small_tensor(at::IntArrayRef shape, at::ScalarType type);

}  // namespace sheaf
