// SPDX-License-Identifier: MIT
#include "c10d/group_ref.hpp"

#include <atomic>
#include <sheaf/error.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

namespace sheaf::c10d_engine {
namespace {

constexpr auto mark_start = " sheaf:";

// Empty where there are no options to write into; then the address must do.
std::string mark_of(c10d::ProcessGroup& group) {
  const auto options = options_of(group);
  const auto start = options ? options->group_desc.rfind(mark_start) : std::string::npos;
  return start == std::string::npos ? "" : options->group_desc.substr(start);
}

std::string marked(c10d::ProcessGroup& group) {
  static std::atomic<int> last{0};
  auto mark = mark_of(group);
  if (mark.empty()) {
    if (const auto options = options_of(group)) {
      mark = mark_start + std::to_string(++last);
      options->group_desc += mark;
    }
  }
  return mark;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend::Options> options_of(c10d::ProcessGroup& group) {
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) {
    try {
      return group.getBackend(device)->getBackendOptions();
    } catch (const std::exception&) {
      // It has no backend for this device.
    }
  }
  return {};
}

group_ref::group_ref(const group_pointer& group)
    : name_(group->getGroupName()), address_(group.get()), mark_(marked(*group)) {}

group_pointer group_ref::lock() const {
  auto group = find_group(name_);
  return group && group.get() == address_ && mark_of(*group) == mark_ ? group : group_pointer();
}

group_pointer find_group(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    return {};
  }
}

group_pointer resolve(const std::string& name) {
  if (auto group = find_group(name)) return group;
  throw value_error("there is no process group \"" + name + "\": was it destroyed, or never made?");
}

}  // namespace sheaf::c10d_engine
