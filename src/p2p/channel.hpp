// SPDX-License-Identifier: MIT
// Tagged messages between the ranks of one group: all that the point-to-point engine asks of a transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/engine.hpp"
#include "core/notices.hpp"

namespace sheaf::p2p {

// A message under way.
class transfer {
 public:
  virtual ~transfer() = default;
  // True once it is done; false if it is not by then. Throws rank_error when the peer is gone.
  virtual bool wait(std::chrono::steady_clock::time_point until) = 0;
};

class channel : public notices {
 public:
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // Messages match by peer and tag (30 bits). A message shorter than its receiver's memory leaves the rest as it was.
  virtual std::unique_ptr<transfer> send(int peer, std::uint32_t tag, memory bytes) = 0;
  virtual std::unique_ptr<transfer> receive(int peer, std::uint32_t tag, memory bytes) = 0;
  // Takes over a transfer that nobody waits for any more, and its memory, until it is done.
  virtual void keep(std::unique_ptr<transfer> abandoned) = 0;
};

}  // namespace sheaf::p2p
