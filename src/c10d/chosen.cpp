// SPDX-License-Identifier: MIT
#include "c10d/chosen.hpp"

#include <c10/util/Exception.h>

#include <sheaf/error.hpp>

#include "c10d/store_bulletin.hpp"
#include "p2p/engine.hpp"

namespace sheaf::c10d_engine {
void chosen::number(call& now) {
  {
    const std::lock_guard lock(mutex_);
    if (!inner_) {
      now.head.sequence = missed_ + 1;
      try {
        settle(now);
      } catch (...) {
        ++missed_;
        throw;
      }
      for (call over; missed_ > 0; --missed_) {
        inner_->begin(over);
        inner_->end(over);
      }
    }
  }
  inner_->number(now);
}

// A try that ends at its deadline leaves the meeting as it is: the next call goes on with it.
void chosen::settle(const call& now) {
  throw_if_impossible();
  try {
    const auto store = link_->group_store();
    if (!meeting_ && store) {
      meeting_ = std::make_unique<shm::meeting>(std::make_shared<store_bulletin>(store), rank(), world(), settings_);
    }
  } catch (const std::exception& error) {
    throw rank_error("the group's store does not answer: " + std::string(error.what()));
  }
  auto met = meeting_ ? meeting_->join(*link_, now) : shm::meeting::outcome{.why_not = "the group has no store"};
  meeting_.reset();
  if (met.place) {
    shared_ = std::make_shared<shm::engine>(shm::engine::membership{met.place, rank(), link_, std::move(met.lives),
                                                                    static_cast<std::size_t>(settings_.pool_bytes)});
    inner_ = shared_;
    return;
  }
  why_not_ = met.why_not;
  throw_if_impossible();
  if (settings_.engine == "auto" && rank() == 0) {
    TORCH_WARN_ONCE("Sheaf carries group \"", link_->name(),
                    "\" through its own backend, not through shared memory: ", why_not_);
  }
  inner_ = std::make_shared<p2p::engine>(link_, settings_);
}

void chosen::throw_if_impossible() const {
  if (settings_.engine != "shm" || why_not_.empty()) return;
  throw value_error("SHEAF_ENGINE=shm, but shared memory cannot be used: " + why_not_);
}

std::string chosen::describe() {
  const auto by_messages = "c10d over " + link_->backend_name() + " (point-to-point messages of the group's backend";
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !inner_) {
    if (settings_.engine == "c10d") return by_messages + ": SHEAF_ENGINE=c10d)";
    return "shm, or c10d over " + link_->backend_name() + " (settled in the group's first call)";
  }
  if (!shared_) return by_messages + ": " + why_not_ + ")";
  return shared_->describe();
}

}  // namespace sheaf::c10d_engine
