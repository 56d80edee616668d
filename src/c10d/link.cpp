// SPDX-License-Identifier: MIT
#include "c10d/link.hpp"

#include <unistd.h>

#include <atomic>
#include <future>
#include <sheaf/error.hpp>

#include "core/chore.hpp"
#include "core/progress.hpp"

namespace sheaf::c10d_engine {
namespace {

using text = std::optional<std::string>;

// A store answers one thread at a time, and whoever waits in it for another rank keeps all others out; one whose host
// is gone may never answer. So a thread of their own asks it for texts, and no wait of a call's depends on it.
class courier {
 public:
  // What ask() says; nothing where it has not said so in a moment. It goes on then, and those after it are not waited
  // for before it is done.
  text send(const std::function<text()>& ask) {
    constexpr auto moment = std::chrono::milliseconds(500);
    const auto reply = std::make_shared<std::promise<text>>();
    auto said = reply->get_future();
    thread_->queue([&] { return [=, this] { reply->set_value(said_by(ask)); }; });
    if (!is_late_ && said.wait_for(moment) == std::future_status::ready) return said.get();
    is_late_ = true;
    return std::nullopt;
  }

  // In a child of fork another one: it has none of its parent's threads.
  static courier& of_this_process() {
    static std::mutex mutex;
    static courier* mine = nullptr;
    const std::lock_guard lock(mutex);
    if (!mine || mine->thread_->owner() != ::getpid()) mine = new courier;
    return *mine;
  }

 private:
  text said_by(const std::function<text()>& ask) noexcept {
    const blind_wait in_the_store;
    try {
      auto said = ask();
      is_late_ = false;
      return said;
    } catch (const std::exception&) {
      return std::nullopt;  // the store may be gone with its host: the error that this is for says so
    }
  }

  const std::shared_ptr<progress> thread_ = std::make_shared<progress>();
  std::atomic<bool> is_late_ = false;
};

}  // namespace

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
    return std::nullopt;  // no thread, or no memory
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
