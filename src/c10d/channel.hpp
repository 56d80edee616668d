// SPDX-License-Identifier: MIT
// Tagged messages over a c10d backend (Gloo, MPI, or any other that sends and receives CPU tensors by tag). Never the
// group's collectives, so that other users of the group cannot clash with Sheaf.
#pragma once

#include "c10d/group_ref.hpp"
#include "p2p/channel.hpp"

namespace sheaf::c10d_engine {

class channel final : public p2p::channel {
 public:
  explicit channel(const group_pointer& group);

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::string name() const override { return group_.name(); }
  std::chrono::milliseconds timeout() const override { return timeout_; }

  std::unique_ptr<p2p::transfer> send(int peer, std::uint32_t tag, memory bytes) override;
  std::unique_ptr<p2p::transfer> receive(int peer, std::uint32_t tag, memory bytes) override;
  void keep(std::unique_ptr<p2p::transfer> abandoned) override;

  // Texts lie in the default group's store, by global rank, so that ranks in different groups find each other's.
  void publish(const std::string& text) noexcept override;
  std::optional<std::string> published(int rank) noexcept override;

  // The group's own; null where it has none.
  c10::intrusive_ptr<c10d::Store> group_store() const;
  std::string backend_name() const { return backend_name_; }
  // Whether that very group was destroyed. To be asked in a chore, or by a thread of the user's.
  bool is_gone() const { return !group_.lock(); }

 private:
  c10::intrusive_ptr<c10d::Backend> backend() const;
  c10::intrusive_ptr<c10d::Store> store() const;
  std::string text_key(int rank) const;

  const group_ref group_;
  const int rank_;
  const int world_;
  const std::string backend_name_;
  const bool is_gloo_;
  const std::chrono::milliseconds timeout_;
  const std::vector<std::uint64_t> global_ranks_;  // by rank; empty: the same
};

}  // namespace sheaf::c10d_engine
