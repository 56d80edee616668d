// SPDX-License-Identifier: MIT
#include "c10d/courier.hpp"

#include <unistd.h>

#include <chrono>
#include <future>

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
  auto said = reply->get_future();
  try {
    thread_->queue([&] { return [=, this] { reply->set_value(said_by(ask)); }; });
  } catch (const std::exception&) {
    return said_by(ask);  // there is no room for a thread, which may be what the note is about
  }
  if (!is_late_ && said.wait_for(moment) == std::future_status::ready) return said.get();
  is_late_ = true;
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
  is_late_ = false;
  return said;
}

}  // namespace sheaf::c10d_engine
