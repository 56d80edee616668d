// SPDX-License-Identifier: MIT
// What carries headers between the ranks of a process group, and where the ranks leave each other texts: the group's
// backend for CPU tensors, or its store.
#pragma once

#include "c10d/group_ref.hpp"
#include "c10d/store_bulletin.hpp"
#include "p2p/channel.hpp"

namespace sheaf::c10d_engine {

class link : public p2p::channel {
 public:
  explicit link(const group_pointer& group);

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::string name() const override { return group_.name(); }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  // Texts lie in the default group's store, by global rank, so that ranks in different groups find each other's.
  void publish(const std::string& text) noexcept override;
  std::optional<std::string> published(int rank) noexcept override;

  // The group's own; null where it has none.
  c10::intrusive_ptr<c10d::Store> group_store() const;
  const group_ref& group() const { return group_; }
  // Whether that very group was destroyed. To be asked in a chore, or by a thread of the user's.
  bool is_gone() const { return !group_.lock(); }
  // The backend for tensors on the device; empty: there is none.
  std::string backend_name(c10::DeviceType device) const;
  // The same as an object. Throws rank_error once the group was destroyed.
  c10::intrusive_ptr<c10d::Backend> backend(c10::DeviceType device) const;
  virtual bool carries_data() const = 0;
  // "point-to-point messages of the group's backend"
  virtual std::string describe() const = 0;

 private:
  using question = std::function<std::optional<std::string>(store_bulletin texts, const std::string& key)>;
  // About a rank's text.
  std::optional<std::string> ask_store(const question& what, int rank) noexcept;
  c10::intrusive_ptr<c10d::Store> store() const;
  std::string text_key(int rank) const;

  const group_ref group_;
  const int rank_;
  const int world_;
  const std::chrono::milliseconds timeout_;
  const std::vector<std::uint64_t> global_ranks_;  // by rank; empty: the same
};

// Empty where the group has no backend for the device.
std::string backend_name(c10d::ProcessGroup& group, c10::DeviceType device);

}  // namespace sheaf::c10d_engine
