// SPDX-License-Identifier: MIT
// Calls that never reach a kernel.
#pragma once

#include <string>

#include "torch/arguments.hpp"

namespace sheaf {

// Refuses such a call for all ranks that listen; of the arguments only what their headers compare first counts. Throws
// value_error; `later`: without waiting for them, since the call would only have been started.
void refuse_for_all(const std::string& why, arguments with, bool later = false);

}  // namespace sheaf
