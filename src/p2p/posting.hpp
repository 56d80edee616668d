// SPDX-License-Identifier: MIT
// The messages of one call: posted together, waited for with a deadline, and left to the channel when the call ends
// early, so that no peer ever waits for a message that was withdrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "p2p/channel.hpp"
#include "p2p/note.hpp"

namespace sheaf::p2p {

class posting {
 public:
  posting(channel& link, const call& now) : link_(link), now_(now) {}
  ~posting();
  posting(const posting&) = delete;
  posting& operator=(const posting&) = delete;

  // Each returns the message's number.
  std::size_t send(int peer, std::uint32_t tag, memory bytes);
  std::size_t receive(int peer, std::uint32_t tag, memory bytes);

  // Waits until the message is done. Throws rank_error at the deadline, or when the peer is gone.
  void wait(std::size_t message);
  void wait_all();
  // The same for a step that is not the end of its call: what this rank last said stays.
  void wait_step();
  // True if all are done by then; never throws for a peer that is late or gone.
  bool try_wait_all(std::chrono::steady_clock::time_point until);

 private:
  struct entry {
    int peer;
    std::unique_ptr<transfer> under_way;  // null once it is done
  };

  std::chrono::steady_clock::time_point deadline() const;
  template <class Post>
  std::size_t post(int peer, Post&& start);
  bool advance(entry& message, std::chrono::steady_clock::time_point until);
  [[noreturn]] void fail_late();
  [[noreturn]] void fail_lost(int peer, const std::string& why);
  std::vector<int> missing_peers();
  std::optional<note> note_of(int peer);

  channel& link_;
  const call& now_;
  std::vector<entry> entries_;
  bool spoken_ = false;
};

// Leaves a note about this call: "is in …", "gave up …", "refused …".
void leave_note(channel& link, const call& now, const std::string& said);

}  // namespace sheaf::p2p
