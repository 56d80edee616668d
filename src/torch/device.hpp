// SPDX-License-Identifier: MIT
// torch's devices, as the core sees them.
#pragma once

#include <c10/core/Device.h>

#include "core/header.hpp"

namespace sheaf {

device_type device_from(c10::DeviceType device);
// Whether what this thread puts on that device's current stream is recorded for a graph.
bool is_capturing(c10::Device device);

}  // namespace sheaf
