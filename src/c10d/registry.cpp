// SPDX-License-Identifier: MIT
#include "c10d/registry.hpp"

#include <mutex>
#include <sheaf/error.hpp>
#include <unordered_map>

#include "c10d/channel.hpp"
#include "c10d/chosen.hpp"
#include "c10d/group_ref.hpp"
#include "core/chore.hpp"
#include "core/settings.hpp"

namespace sheaf::c10d_engine {
namespace {

std::string backend_name(c10d::ProcessGroup& group, c10::DeviceType device) {
  try {
    return group.getBackend(device)->getBackendName();
  } catch (const std::exception&) {
    return "";
  }
}

// By the object, not the name: the default group is "0" again after destroy and init.
class registry {
 public:
  void forget() {
    const std::lock_guard lock(mutex_);
    sweep();
  }

  std::shared_ptr<chosen> find(const std::string& name) {
    const auto group = resolve(name);
    end_chores_at_exit();
    const std::lock_guard lock(mutex_);
    const auto known = entries_.find(group.get());
    if (known != entries_.end() && known->second.group.lock()) return known->second.moves;
    sweep();
    return entries_.emplace(group.get(), make(group)).first->second.moves;
  }

 private:
  void sweep() {
    std::erase_if(entries_, [](const auto& item) { return !item.second.group.lock(); });
  }

  struct entry {
    group_ref group;
    std::shared_ptr<chosen> moves;
  };

  static entry make(const group_pointer& group) {
    if (backend_name(*group, c10::DeviceType::CPU).empty()) {
      throw value_error("the process group has no backend for CPU tensors: make it with one, such as gloo");
    }
    return {group_ref(group), std::make_shared<chosen>(std::make_shared<channel>(group), read_settings())};
  }

  std::mutex mutex_;
  std::unordered_map<const c10d::ProcessGroup*, entry> entries_;
};

// Never destroyed: calls may come while the process ends.
registry& engines() {
  static auto* all = new registry;
  return *all;
}

}  // namespace

bool has_group(const std::string& name) { return bool(find_group(name)); }

group_info inspect(const std::string& name) {
  const auto group = resolve(name);
  const bool carries_cpu = !backend_name(*group, c10::DeviceType::CPU).empty();
  return {group->getRank(), group->getSize(), carries_cpu ? engines().find(name)->describe() : ""};
}

std::shared_ptr<engine> find(const std::string& name) { return engines().find(name); }

void forget_destroyed_groups() { engines().forget(); }

}  // namespace sheaf::c10d_engine
