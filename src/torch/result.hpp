// SPDX-License-Identifier: MIT
// An engine's memory as an ordinary tensor: it can be written, resized, pickled, shared and outlive everything.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/engine.hpp"

namespace sheaf {

at::Tensor tensor_over(memory bytes, at::IntArrayRef shape, const at::TensorOptions& options);

}  // namespace sheaf
