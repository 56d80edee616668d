// SPDX-License-Identifier: MIT
#include "c10d/courier.hpp"

#include <unistd.h>

#include <atomic>
#include <chrono>

#include "core/chore.hpp"

namespace sheaf::c10d_engine {

// Never destroyed: its thread outlives main. A child of fork has none of its parent's threads, and gets another one.
courier& courier::of_this_process() {
  static std::atomic<courier*> current{nullptr};
  auto* mine = current.load();
  while (!mine || mine->thread_->owner() != ::getpid()) {
    auto made = std::make_unique<courier>();
    if (current.compare_exchange_strong(mine, made.get())) mine = made.release();
  }
  return *mine;
}

courier::text courier::send(const std::function<text()>& ask) {
  constexpr auto moment = std::chrono::milliseconds(500);
  const auto reply = std::make_shared<std::promise<text>>();
  const std::shared_future<text> said = reply->get_future().share();
  try {
    thread_->queue([&] { return [=] { reply->set_value(said_by(ask)); }; });
  } catch (const std::exception&) {
    return said_by(ask);  // there is no room for a thread, which may be what the note is about
  }
  const auto is_there = [](const std::shared_future<text>& one, std::chrono::milliseconds within) {
    return one.wait_for(within) == std::future_status::ready;
  };
  std::unique_lock lock(mutex_);
  if (late_.valid() && !is_there(late_, {})) return std::nullopt;
  lock.unlock();
  if (is_there(said, moment)) return said.get();
  lock.lock();
  late_ = said;
  return std::nullopt;
}

courier::text courier::said_by(const std::function<text()>& ask) noexcept {
  const blind_wait in_the_store;
  text said;
  try {
    said = ask();
  } catch (const std::exception&) {
    // The store may be gone with its host: the error that the note is for says so.
  }
  return said;
}

}  // namespace sheaf::c10d_engine
