// SPDX-License-Identifier: MIT
// Frames between ranks. A receive from every peer always stands ready, so a frame is one message and no more; a peer's
// frames arrive in the order it sent them, and those of calls that are over are passed by.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "core/header.hpp"
#include "core/patience.hpp"
#include "p2p/channel.hpp"
#include "p2p/posting.hpp"

namespace sheaf::p2p {

class mail {
 public:
  explicit mail(channel& link) : link_(link), boxes_(link.world()) {}

  // Makes room for the next frame of a peer, so that it can send without waiting for this rank to ask.
  void stand_ready(int peer);
  // One frame to every peer.
  void send(posting& messages, const header& head, std::span<const std::byte> payload);
  // Whether a frame of this very call came from the peer and was not taken. Passes no frame by.
  bool holds(int peer, std::uint64_t sequence);
  // Whether the peer's frame of call `sequence` is there by then, or a later one. Throws rank_error when it is gone.
  bool has(int peer, std::uint64_t sequence, std::chrono::steady_clock::time_point until);
  // The peer's frame of call `sequence`; nullopt when what came is no frame. Throws rank_error at the deadline, or when
  // the peer is in a later call already.
  std::optional<frame> receive(int peer, std::uint64_t sequence, patience& waiting);

 private:
  struct box {
    memory space;
    std::unique_ptr<transfer> arriving;
    bool full = false;  // `front` has come and is not taken
    std::optional<frame> front;
    std::optional<std::uint64_t> taken;  // the call whose frame was taken last
  };
  // Whether a frame of the peer's is there by then.
  bool arrives(int peer, std::chrono::steady_clock::time_point until);
  std::vector<int> missing_peers(std::uint64_t sequence);

  channel& link_;
  std::vector<box> boxes_;  // by rank
};

}  // namespace sheaf::p2p
