// SPDX-License-Identifier: MIT
#include "c10d/link.hpp"

#include <sheaf/error.hpp>

#include "c10d/store_bulletin.hpp"

namespace sheaf::c10d_engine {

link::link(const group_pointer& group)
    : group_(group),
      rank_(group->getRank()),
      world_(group->getSize()),
      timeout_(options_of(*group) ? options_of(*group)->timeout : kBackendDefaultTimeout),
      global_ranks_(options_of(*group) ? options_of(*group)->global_ranks_in_group : std::vector<std::uint64_t>()) {}

c10::intrusive_ptr<c10d::Backend> link::backend(c10::DeviceType device) const {
  const auto alive = group_.lock();
  if (!alive) throw rank_error("the process group was destroyed");
  return alive->getBackend(device);
}

std::string link::backend_name(c10::DeviceType device) const {
  const auto alive = group_.lock();
  return alive ? c10d_engine::backend_name(*alive, device) : "";
}

c10::intrusive_ptr<c10d::Store> link::group_store() const {
  const auto group = group_.lock();
  return group ? group->getStore() : c10::intrusive_ptr<c10d::Store>();
}

c10::intrusive_ptr<c10d::Store> link::store() const {
  if (const auto shared = find_group("0")) return shared->getStore();
  return group_store();  // made without a default group
}

std::string link::text_key(int rank) const {
  return "sheaf/note/" + std::to_string(global_ranks_.empty() ? rank : global_ranks_[rank]);
}

void link::publish(const std::string& text) noexcept {
  try {
    if (const auto shared = store()) shared->set(text_key(rank_), text);
  } catch (const std::exception&) {
    // The store may be gone with its host: the error this text is for says so.
  }
}

std::optional<std::string> link::published(int rank) noexcept {
  try {
    const auto shared = store();
    return shared ? store_bulletin(shared).get(text_key(rank)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string backend_name(c10d::ProcessGroup& group, c10::DeviceType device) {
  try {
    return group.getBackend(device)->getBackendName();
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace sheaf::c10d_engine
