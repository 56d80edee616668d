// SPDX-License-Identifier: MIT
// One c10d message under way, its memory held until it is done.
#pragma once

#include "c10d/group_ref.hpp"
#include "p2p/channel.hpp"

namespace sheaf::c10d_engine {

class transfer final : public p2p::transfer {
 public:
  transfer(c10::intrusive_ptr<c10d::Work> work, memory bytes, const group_ref& group, bool is_gloo)
      : bytes_(std::move(bytes)), work_(std::move(work)), group_(group), is_gloo_(is_gloo) {}

  bool wait(std::chrono::steady_clock::time_point until) override;
  // The group it belongs to was destroyed: it will never be done.
  bool is_orphan() const { return !group_.lock(); }

 private:
  memory bytes_;  // outlives the work, which may still write to it while it goes
  c10::intrusive_ptr<c10d::Work> work_;
  group_ref group_;
  const bool is_gloo_;
};

// Looks after a transfer that nobody waits for, in a thread that lives while there is any.
void adopt(std::unique_ptr<transfer> abandoned);

}  // namespace sheaf::c10d_engine
