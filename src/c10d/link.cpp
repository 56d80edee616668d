// SPDX-License-Identifier: MIT
#include "c10d/link.hpp"

#include <sheaf/error.hpp>

#include "c10d/courier.hpp"

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

void link::publish(const std::string& said) noexcept {
  ask_store(
      [said](store_bulletin texts, const std::string& key) {
        texts.set(key, said);
        return std::nullopt;
      },
      rank_);
}

std::optional<std::string> link::published(int rank) noexcept {
  return ask_store([](store_bulletin texts, const std::string& key) { return texts.get(key); }, rank);
}

std::optional<std::string> link::ask_store(const question& what, int rank) noexcept {
  try {
    const auto shared = store();
    if (!shared) return std::nullopt;
    return courier::of_this_process().send(
        [what, shared, key = text_key(rank)] { return what(store_bulletin(shared), key); });
  } catch (const std::exception&) {
    return std::nullopt;  // no memory: the error that the text is for is raised all the same
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
