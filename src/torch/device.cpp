// SPDX-License-Identifier: MIT
#include "torch/device.hpp"

#include <c10/core/DeviceGuard.h>

#include "core/work.hpp"

namespace sheaf {

device_type device_from(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) return device_type::cpu;
  return device == c10::DeviceType::CUDA ? device_type::cuda : device_type::other;
}

bool is_capturing(c10::Device device) {
  const auto* work = find_work(device_from(device.type()));
  if (device.is_cpu() || !work) return false;
  const c10::DeviceGuard there(device);
  return work->is_capturing();
}

}  // namespace sheaf
