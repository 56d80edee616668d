// SPDX-License-Identifier: MIT
// How long one call waits for other ranks, what it tells them meanwhile, and what it says when it gives up.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <sheaf/error.hpp>
#include <string>
#include <vector>

#include "core/note.hpp"
#include "core/notices.hpp"

namespace sheaf {

// Thrown inside of waits: which rank is gone, and how that was seen.
struct peer_gone {
  int peer;
  std::string why;
};

class patience {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  // What the engine itself sees of a rank, for errors; nothing: nothing.
  using witness = std::function<std::optional<note>(int peer)>;

  // Looks, now and then in a wait for this rank, for signs that the wait is in vain, and throws where there are any.
  using lookout = std::function<void(int peer)>;

  patience(notices& link, const call& now, witness seen = {}, lookout looks = {})
      : link_(link), now_(now), seen_(std::move(seen)), looks_(std::move(looks)) {}

  // Asks is_done(until), in slices, until it says so. At the deadline throws a rank_error about the ranks that
  // missing() names; when is_done throws one, `peer` is gone.
  template <class Done, class Missing>
  void wait(int peer, Done&& is_done, Missing&& missing) {
    for (;;) {
      try {
        if (is_done(slice_end())) return;
      } catch (const peer_gone& gone) {
        lost(gone.peer, gone.why);
      } catch (const rank_error& error) {
        lost(peer, error.what());
      }
      pause();
      if (looks_) looks_(peer);
      if (!is_over()) continue;
      if (const auto ranks = missing(); !ranks.empty()) give_up(ranks);
    }
  }

  // The call is done: takes back what this rank last told the others.
  void finish();
  // Leaves a note about this call: "is in …", "gave up …", "refused …".
  void tell_others(const std::string& said);

  // `peer` is gone, and the group with it.
  [[noreturn]] void lost(int peer, const std::string& why);
  // `peer` lives, but takes part in no call up to `last` any more.
  [[noreturn]] void deserted(int peer, std::uint64_t last);
  // `peer` is in a later call already.
  [[noreturn]] void passed(int peer, const header& later);
  const call& now() const { return now_; }

 private:
  std::chrono::milliseconds limit() const { return now_.timeout.value_or(link_.timeout()); }
  bool is_over() const { return std::chrono::steady_clock::now() >= now_.started + limit(); }
  time_point slice_end() const;
  void pause();
  [[noreturn]] void give_up(const std::vector<int>& missing);
  // Ends an error: what this rank is in.
  std::string here() const;
  std::optional<note> note_of(int peer);
  // Its note or, where that is old, what the engine saw of it later.
  std::optional<note> last_of(int peer);

  notices& link_;
  const call& now_;
  const witness seen_;
  const lookout looks_;
  bool spoken_ = false;
};

}  // namespace sheaf
