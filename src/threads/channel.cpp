// SPDX-License-Identifier: MIT
#include "threads/channel.hpp"

namespace sheaf::threads {
namespace {

class transfer final : public p2p::transfer {
 public:
  transfer(team& mates, int peer, std::shared_ptr<message> end) : mates_(mates), peer_(peer), end_(std::move(end)) {}
  bool wait(std::chrono::steady_clock::time_point until) override { return mates_.wait(*end_, peer_, until); }

 private:
  team& mates_;
  const int peer_;
  const std::shared_ptr<message> end_;
};

}  // namespace

std::unique_ptr<p2p::transfer> channel::send(int peer, std::uint32_t tag, memory bytes) {
  return std::make_unique<transfer>(mates_, peer, mates_.post_send(rank_, peer, tag, std::move(bytes)));
}

std::unique_ptr<p2p::transfer> channel::receive(int peer, std::uint32_t tag, memory bytes) {
  return std::make_unique<transfer>(mates_, peer, mates_.post_receive(peer, rank_, tag, std::move(bytes)));
}

}  // namespace sheaf::threads
