// SPDX-License-Identifier: MIT
#include "c10d/registry.hpp"

#include <mutex>
#include <sheaf/error.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <unordered_map>

#include "c10d/channel.hpp"
#include "core/settings.hpp"
#include "p2p/engine.hpp"

namespace sheaf::c10d_engine {
namespace {

using group_pointer = c10::intrusive_ptr<c10d::ProcessGroup>;

group_pointer resolve(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    throw value_error("there is no process group \"" + name + "\": was it destroyed, or never made?");
  }
}

std::string backend_name(c10d::ProcessGroup& group, c10::DeviceType device) {
  try {
    return group.getBackend(device)->getBackendName();
  } catch (const std::exception&) {
    return "";
  }
}

// Keyed by the object, not the name: the default group is "0" again after destroy and init.
class registry {
 public:
  std::shared_ptr<engine> find(const group_pointer& group) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& item) { return item.second.group.expired(); });
    auto& slot = entries_[group.get()];
    if (!slot.moves) {
      if (backend_name(*group, c10::DeviceType::CPU).empty()) {
        throw value_error("the process group has no backend for CPU tensors: make it with one, such as gloo");
      }
      slot.group = c10::weak_intrusive_ptr<c10d::ProcessGroup>(group);
      slot.moves = std::make_shared<p2p::engine>(std::make_shared<channel>(group), read_settings());
    }
    return slot.moves;
  }

 private:
  struct entry {
    c10::weak_intrusive_ptr<c10d::ProcessGroup> group{group_pointer()};
    std::shared_ptr<engine> moves;
  };
  std::mutex mutex_;
  std::unordered_map<c10d::ProcessGroup*, entry> entries_;
};

}  // namespace

bool exists(const std::string& name) {
  try {
    return bool(c10d::resolve_process_group(name));
  } catch (const std::exception&) {
    return false;
  }
}

group_info inspect(const std::string& name) {
  const auto group = resolve(name);
  return {group->getRank(), group->getSize(), backend_name(*group, c10::DeviceType::CPU),
          backend_name(*group, c10::DeviceType::CUDA)};
}

std::shared_ptr<engine> find(const std::string& name) {
  // Never destroyed: calls may come while the process ends.
  static auto* engines = new registry;
  return engines->find(resolve(name));
}

}  // namespace sheaf::c10d_engine
