// SPDX-License-Identifier: MIT
// The engine of a c10d group: shared memory where all ranks are on one host, the group's own messages elsewhere, and
// for tensors on a device, whose headers go the same way, the collectives of its backend. Ranks settle it together in
// the group's first call.
#pragma once

#include <mutex>

#include "c10d/collectives.hpp"
#include "c10d/link.hpp"
#include "core/engine.hpp"
#include "core/settings.hpp"
#include "shm/engine.hpp"
#include "shm/meeting.hpp"

namespace sheaf::c10d_engine {

class chosen final : public engine {
 public:
  chosen(std::shared_ptr<link> by, settings with)
      : link_(std::move(by)), settings_(std::move(with)), collectives_(link_) {}

  int rank() const override { return link_->rank(); }
  int world() const override { return link_->world(); }
  void number(call& now) override;
  void take_turn(call& now) override { inner_->take_turn(now); }
  void end(const call& now) noexcept override { inner_->end(now); }
  void skip(std::uint64_t calls) noexcept override { inner_->skip(calls); }
  bool is_gone() override { return link_->is_gone(); }
  bool checks_sized_calls() const override { return inner_->checks_sized_calls(); }
  // In shared memory a header costs microseconds, and backends do not compare what ranks are about to do. Backwards are
  // what ranks leave out unknowingly.
  bool checks_device_call(const header& head) const override { return settings_.check || shared_ || head.origin != 0; }
  void lose_step(const call& now) noexcept override;
  std::string out_of_step_since() const override;
  carriage carries(device_type device) const override;
  bool carries_apart(device_type device) const override;
  std::size_t inline_bytes() const override { return inner_->inline_bytes(); }

  const heard& exchange(const call& now, const payload& data) override { return inner_->exchange(now, data); }
  std::vector<std::optional<frame>> refuse(const call& now) override { return inner_->refuse(now); }
  void report(const call& now, const std::string& said) override { inner_->report(now, said); }
  memory take_result(const call& now, const layout& at) override { return inner_->take_result(now, at); }
  memory take_private(std::size_t bytes) override { return inner_->take_private(bytes); }
  void all_gather(const call& now, const layout& at, memory own, memory result) override;
  void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) override;
  void all_gather_coalesced(const call& now, const bundle& all) override;
  void reduce_scatter_coalesced(const call& now, const bundle& all, memory own) override;

  // What carries this group's tensors, and why; never communicates. Empty: nothing does.
  std::string describe_cpu();
  std::string describe_cuda() const;

 private:
  bool is_device(const memory& bytes) const { return carries(bytes.device) == carriage::device; }
  std::string describe_headers();
  std::string describe_collectives(c10::DeviceType device, const std::string& why) const;
  void settle(const call& now);
  void throw_if_impossible() const;

  const std::shared_ptr<link> link_;
  const settings settings_;
  collectives collectives_;
  mutable std::mutex step_mutex_;
  std::string out_of_step_since_;
  std::mutex mutex_;  // guards all below until the engine is settled
  std::unique_ptr<shm::meeting> meeting_;
  std::shared_ptr<engine> inner_;
  std::shared_ptr<shm::engine> shared_;  // the same, where it is that one
  std::string why_not_;
  std::uint64_t missed_ = 0;  // calls that failed before; they count, as they do on other ranks
};

}  // namespace sheaf::c10d_engine
