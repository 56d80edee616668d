// SPDX-License-Identifier: MIT
// The engine over point-to-point messages: each collective is one file, written once for every channel.
#pragma once

#include <atomic>
#include <mutex>

#include "core/engine.hpp"
#include "core/settings.hpp"
#include "core/turns.hpp"
#include "core/warm.hpp"
#include "p2p/channel.hpp"
#include "p2p/mail.hpp"
#include "p2p/tags.hpp"

namespace sheaf::p2p {

// Kept for pieces on their way, and so what all pieces of one call under way should fit in.
inline constexpr std::size_t scratch_bytes = std::size_t{20} << 20;

class engine final : public sheaf::engine {
 public:
  engine(std::shared_ptr<channel> link, settings with)
      : link_(std::move(link)),
        settings_(std::move(with)),
        warm_(std::make_shared<warm_memory>(settings_.pool_bytes / link_->world())),
        mail_(*link_),
        greetings_(link_->world()) {}

  int rank() const override { return link_->rank(); }
  int world() const override { return link_->world(); }
  void number(call& now) override { turns_.number(now); }
  void take_turn(call& now) override { turns_.take(now); }  // frames of a peer are read in order
  void end(const call& now) noexcept override { turns_.end(now); }
  void skip(std::uint64_t calls) noexcept override { turns_.skip(calls); }
  bool checks_sized_calls() const override { return settings_.check; }

  const heard& exchange(const call& now, const payload& data) override;
  std::vector<std::optional<frame>> refuse(const call& now) override;
  void report(const call& now, const std::string& said) override;
  memory take_result(const call& now, const layout& at) override;
  void all_gather(const call& now, const layout& at, memory own, memory result) override;
  void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) override;
  void all_gather_coalesced(const call& now, const bundle& all) override;
  void reduce_scatter_coalesced(const call& now, const bundle& all, memory own) override;

 private:
  void gather(patience& waiting, const bundle& all, const data_tags& tag);
  void scatter(patience& waiting, const bundle& all, memory own);

  // The group's first call: ranks compare their settings. A second try goes on where the first gave up.
  void greet(patience& waiting);
  void send_greeting(patience& waiting);
  void hear_greetings(patience& waiting);
  // Of a call whose data is on its way. Calls without headers look out for other ranks' headers of the same number:
  // whoever sends one is in another call, or refuses. Then all compare, and raise the same.
  patience on_the_way(const call& now);
  void compare_after_all(int peer, const call& now);

  std::shared_ptr<channel> link_;
  const settings settings_;
  const std::shared_ptr<warm_memory> scratch_ = std::make_shared<warm_memory>(scratch_bytes);
  const std::shared_ptr<warm_memory> warm_;
  turns turns_;

  std::mutex mail_mutex_;  // guards all below
  mail mail_;
  heard heard_;
  bool greeting_sent_ = false;
  std::vector<std::optional<std::string>> greetings_;  // by rank, as they come
  std::atomic<bool> ready_{false};
};

}  // namespace sheaf::p2p
