// SPDX-License-Identifier: MIT
// One c10d message under way, its memory held until it is done.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "p2p/channel.hpp"

namespace sheaf::c10d_engine {

class transfer final : public p2p::transfer {
 public:
  transfer(c10::intrusive_ptr<c10d::Work> work, memory bytes, c10::weak_intrusive_ptr<c10d::Backend> backend,
           bool is_gloo)
      : work_(std::move(work)), bytes_(std::move(bytes)), backend_(std::move(backend)), is_gloo_(is_gloo) {}

  bool wait(std::chrono::steady_clock::time_point until) override;
  // The group it belongs to was destroyed: it will never be done.
  bool is_orphan() const { return backend_.expired(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  memory bytes_;
  c10::weak_intrusive_ptr<c10d::Backend> backend_;
  const bool is_gloo_;
};

// Looks after a transfer that nobody waits for, in a thread that lives while there is any.
void adopt(std::unique_ptr<transfer> abandoned);

// The first line of what an exception says.
std::string first_line(const std::exception& error);

}  // namespace sheaf::c10d_engine
