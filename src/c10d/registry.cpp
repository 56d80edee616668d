// SPDX-License-Identifier: MIT
#include "c10d/registry.hpp"

#include <mutex>
#include <sheaf/error.hpp>
#include <unordered_map>

#include "c10d/channel.hpp"
#include "c10d/chosen.hpp"
#include "c10d/group_ref.hpp"
#include "c10d/store_channel.hpp"
#include "core/chore.hpp"
#include "core/settings.hpp"
#include "core/work.hpp"

namespace sheaf::c10d_engine {
namespace {

// Null where no backend of the group is one that Sheaf can use.
std::shared_ptr<link> make_link(const group_pointer& group) {
  if (!backend_name(*group, c10::DeviceType::CPU).empty()) return std::make_shared<channel>(group);
  const bool has_cuda = find_work(device_type::cuda) && !backend_name(*group, c10::DeviceType::CUDA).empty();
  return has_cuda ? std::make_shared<store_channel>(group) : nullptr;
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
    auto by = make_link(group);
    if (!by) throw value_error("the process group has no backend for CPU tensors: make it with one, such as gloo");
    return {group_ref(group), std::make_shared<chosen>(std::move(by), read_settings())};
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
  group_info info{group->getRank(), group->getSize(), "", ""};
  if (!make_link(group)) return info;
  const auto moves = engines().find(name);
  info.cpu_engine = moves->describe_cpu();
  info.cuda_engine = moves->describe_cuda();
  return info;
}

std::shared_ptr<engine> find(const std::string& name) { return engines().find(name); }

void forget_destroyed_groups() { engines().forget(); }

}  // namespace sheaf::c10d_engine
