// SPDX-License-Identifier: MIT
#include "core/progress.hpp"

#include <chrono>
#include <thread>

#include "core/chore.hpp"

namespace sheaf {
namespace {

// Threads cost more to start than small calls take.
constexpr std::chrono::seconds linger{1};

}  // namespace

progress::place progress::take_place() {
  const std::lock_guard lock(mutex_);
  if (places_ == most) return nullptr;
  ++places_;
  return place(this, [self = shared_from_this()](const void*) {
    const std::lock_guard back(self->mutex_);
    --self->places_;
  });
}

bool progress::is_busy() const {
  const std::lock_guard lock(mutex_);
  return runs_ || !jobs_.empty();
}

void progress::queue(const std::function<job()>& made) {
  end_chores_at_exit();
  const std::lock_guard in_order(order_);
  const auto there = hold_thread();  // before the number: a call that has one must run
  auto one = made();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(one));
  }
  added_.notify_one();
}

std::shared_ptr<void> progress::hold_thread() {
  const std::lock_guard lock(mutex_);
  if (!has_thread_) std::thread([self = shared_from_this()] { self->carry(); }).detach();
  has_thread_ = true;
  ++held_;
  return {this, [this](void*) {
            const std::lock_guard over(mutex_);
            --held_;
          }};
}

void progress::carry() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!added_.wait_for(lock, linger, [&] { return !jobs_.empty(); })) {
      if (places_ > 0 || held_ > 0) continue;
      has_thread_ = false;
      return;
    }
    auto next = std::make_unique<job>(std::move(jobs_.front()));
    jobs_.pop_front();
    runs_ = true;
    lock.unlock();
    if (const errand now; now) (*next)();
    if (const chore now; now) {
      next.reset();
    } else {
      next.release();  // it may hold what needs Python
      return;
    }
    lock.lock();
    runs_ = false;
  }
}

}  // namespace sheaf
