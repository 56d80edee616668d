// SPDX-License-Identifier: MIT
// The messages of one call: posted together, waited for with a deadline, and left to the channel when the call ends
// early, so that no peer ever waits for a message that was withdrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/patience.hpp"
#include "p2p/channel.hpp"

namespace sheaf::p2p {

class posting {
 public:
  posting(channel& link, patience& waiting) : link_(link), waiting_(waiting) {}
  ~posting();
  posting(const posting&) = delete;
  posting& operator=(const posting&) = delete;

  // Each returns the message's number.
  std::size_t send(int peer, std::uint32_t tag, memory bytes);
  std::size_t receive(int peer, std::uint32_t tag, memory bytes);

  // Waits until the message is done. Throws rank_error at the deadline, or when the peer is gone.
  void wait(std::size_t message);
  void wait_all();
  // For messages whose fate is not this call's: by `until` at the latest the rest is left to the channel.
  void leave(std::chrono::steady_clock::time_point until);

 private:
  struct entry {
    int peer;
    std::unique_ptr<transfer> under_way;  // null once it is done

    bool is_done(std::chrono::steady_clock::time_point until);
  };
  template <class Post>
  std::size_t post(int peer, Post&& start);
  std::vector<int> missing_peers();

  channel& link_;
  patience& waiting_;
  std::vector<entry> entries_;
};

}  // namespace sheaf::p2p
