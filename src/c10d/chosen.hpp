// SPDX-License-Identifier: MIT
// The engine of a c10d group: shared memory where all ranks are on one host, the group's own messages elsewhere. Ranks
// settle it together in the group's first call.
#pragma once

#include <mutex>

#include "c10d/channel.hpp"
#include "core/engine.hpp"
#include "core/settings.hpp"
#include "shm/engine.hpp"
#include "shm/meeting.hpp"

namespace sheaf::c10d_engine {

class chosen final : public engine {
 public:
  chosen(std::shared_ptr<channel> link, settings with) : link_(std::move(link)), settings_(std::move(with)) {}

  int rank() const override { return link_->rank(); }
  int world() const override { return link_->world(); }
  void number(call& now) override;
  void take_turn(call& now) override { inner_->take_turn(now); }
  void end(const call& now) noexcept override { inner_->end(now); }
  bool is_gone() override { return link_->is_gone(); }
  bool checks_sized_calls() const override { return inner_->checks_sized_calls(); }
  std::size_t inline_bytes() const override { return inner_->inline_bytes(); }

  std::vector<std::optional<frame>> exchange(const call& now, std::span<const std::byte> payload) override {
    return inner_->exchange(now, payload);
  }
  std::vector<std::optional<frame>> refuse(const call& now) override { return inner_->refuse(now); }
  void report(const call& now, const std::string& said) override { inner_->report(now, said); }
  memory take_result(const call& now, const layout& at) override { return inner_->take_result(now, at); }
  memory take_private(std::size_t bytes) override { return inner_->take_private(bytes); }
  void all_gather(const call& now, const layout& at, memory own, memory result) override {
    inner_->all_gather(now, at, std::move(own), std::move(result));
  }
  void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) override {
    inner_->reduce_scatter(now, at, op, std::move(whole), std::move(own));
  }

  // What carries this group's tensors, and why; never communicates.
  std::string describe();

 private:
  void settle(const call& now);
  void throw_if_impossible() const;

  const std::shared_ptr<channel> link_;
  const settings settings_;
  std::mutex mutex_;  // guards all below until the engine is settled
  std::unique_ptr<shm::meeting> meeting_;
  std::shared_ptr<engine> inner_;
  std::shared_ptr<shm::engine> shared_;  // the same, where it is that one
  std::string why_not_;
  std::uint64_t missed_ = 0;  // calls that failed before; they count, as they do on other ranks
};

}  // namespace sheaf::c10d_engine
