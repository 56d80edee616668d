// SPDX-License-Identifier: MIT
// all_gather of static shapes: buffers of fixed rows, of which a number on the device says how many are valid.
#pragma once

#include <sheaf/all_gather.hpp>

namespace sheaf {

// With options.valid. What is wrong on one rank is told to the others where they listen. Throws torch's errors.
gathered gather_valid(const at::Tensor& x, const all_gather_options& options);

}  // namespace sheaf
