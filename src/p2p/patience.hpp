// SPDX-License-Identifier: MIT
// How long one call waits for other ranks, what it tells them meanwhile, and what it says when it gives up.
#pragma once

#include <chrono>
#include <sheaf/error.hpp>
#include <string>
#include <vector>

#include "p2p/channel.hpp"
#include "p2p/note.hpp"

namespace sheaf::p2p {

class patience {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  patience(channel& link, const call& now) : link_(link), now_(now) {}

  // Asks is_done(until), in slices, until it says so. At the deadline throws a rank_error about the ranks that
  // missing() names; when is_done throws one, `peer` is gone.
  template <class Done, class Missing>
  void wait(int peer, Done&& is_done, Missing&& missing) {
    for (;;) {
      try {
        if (is_done(slice_end())) return;
      } catch (const rank_error& error) {
        lost(peer, error.what());
      }
      pause();
      if (!is_over()) continue;
      if (const auto ranks = missing(); !ranks.empty()) give_up(ranks);
    }
  }

  // The call is done: takes back what this rank last told the others.
  void finish();
  // Leaves a note about this call: "is in …", "gave up …", "refused …".
  void tell_others(const std::string& said);

  [[noreturn]] void lost(int peer, const std::string& why);
  const call& now() const { return now_; }

 private:
  std::chrono::milliseconds limit() const { return now_.timeout.value_or(link_.timeout()); }
  bool is_over() const { return std::chrono::steady_clock::now() >= now_.started + limit(); }
  time_point slice_end() const;
  void pause();
  [[noreturn]] void give_up(const std::vector<int>& missing);
  std::optional<note> note_of(int peer);

  channel& link_;
  const call& now_;
  bool spoken_ = false;
};

}  // namespace sheaf::p2p
