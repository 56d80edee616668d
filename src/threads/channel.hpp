// SPDX-License-Identifier: MIT
// One thread's end of its team's mailbox.
#pragma once

#include "p2p/channel.hpp"
#include "threads/team.hpp"

namespace sheaf::threads {

class channel : public p2p::channel {
 public:
  channel(team& mates, int rank, int world) : mates_(mates), rank_(rank), world_(world) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  std::string name() const override { return mates_.name(); }
  std::chrono::milliseconds timeout() const override { return mates_.timeout(); }

  std::unique_ptr<p2p::transfer> send(int peer, std::uint32_t tag, memory bytes) override;
  std::unique_ptr<p2p::transfer> receive(int peer, std::uint32_t tag, memory bytes) override;
  // The mailbox holds what was posted, so there is nothing to keep.
  void keep(std::unique_ptr<p2p::transfer>) override {}

  void publish(const std::string& text) noexcept override { mates_.publish(rank_, text); }
  std::optional<std::string> published(int rank) noexcept override { return mates_.published(rank); }

 private:
  team& mates_;
  const int rank_;
  const int world_;
};

}  // namespace sheaf::threads
