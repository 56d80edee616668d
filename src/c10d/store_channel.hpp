// SPDX-License-Identifier: MIT
// Messages through a process group's store, for groups whose only backend is a device's: headers travel on the host all
// the same. Slow, and for headers alone.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "c10d/link.hpp"

namespace sheaf::c10d_engine {

class store_channel final : public link {
 public:
  explicit store_channel(const group_pointer& group) : link(group) {}

  std::unique_ptr<p2p::transfer> send(int peer, std::uint32_t tag, memory bytes) override;
  std::unique_ptr<p2p::transfer> receive(int peer, std::uint32_t tag, memory bytes) override;
  void keep(std::unique_ptr<p2p::transfer>) override {}  // what was sent lies in the store

  bool carries_data() const override { return false; }
  std::string describe() const override {
    return "headers through the group's store (it has no backend for CPU tensors";
  }

 private:
  using counters = std::map<std::pair<int, std::uint32_t>, std::uint64_t>;  // messages so far, by peer and tag
  std::string next_key(counters& count, int from, int to, int peer, std::uint32_t tag);

  std::mutex mutex_;  // guards all below
  counters sent_;
  counters received_;
};

}  // namespace sheaf::c10d_engine
