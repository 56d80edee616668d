// SPDX-License-Identifier: MIT
// The engine over point-to-point messages: each collective is one file, written once for every channel.
#pragma once

#include <atomic>
#include <mutex>

#include "core/engine.hpp"
#include "core/settings.hpp"
#include "p2p/channel.hpp"
#include "p2p/posting.hpp"

namespace sheaf::p2p {

class engine final : public sheaf::engine {
 public:
  engine(std::shared_ptr<channel> link, settings with) : link_(std::move(link)), settings_(std::move(with)) {}

  int rank() const override { return link_->rank(); }
  int world() const override { return link_->world(); }
  std::uint64_t next_sequence() override { return ++sequence_; }
  bool checks_sized_calls() const override { return settings_.check; }

  std::vector<std::optional<frame>> exchange(const call& now, std::span<const std::byte> payload) override;
  std::vector<std::optional<frame>> refuse(const call& now) override;
  void all_gather(const call& now, const layout& at, memory own, memory result) override;
  void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) override;

 private:
  // One frame to and from every peer.
  struct round {
    std::vector<memory> frames;
    memory own;
  };
  round post_frames(posting& messages, const header& head, std::span<const std::byte> payload);
  std::vector<std::optional<frame>> read_frames(const round& posted) const;
  // The group's first call: ranks compare their settings. A second try waits for what the first posted.
  void greet(const call& now);
  void post_greeting(const call& now);

  std::shared_ptr<channel> link_;
  const settings settings_;
  std::atomic<std::uint64_t> sequence_{0};

  struct greeting {
    call now;
    round posted;
    posting messages;
    greeting(channel& link, const call& first) : now(first), messages(link, now) {}
  };
  std::mutex greeting_mutex_;
  std::unique_ptr<greeting> greeting_;
  std::atomic<bool> ready_{false};
};

// A tag that only the same message of the same call has.
std::uint32_t frame_tag(const header& head);
class data_tags {
 public:
  data_tags(const call& now, const layout& at);
  std::uint32_t operator()(std::uint64_t piece) const;

 private:
  std::uint64_t call_;
};

}  // namespace sheaf::p2p
