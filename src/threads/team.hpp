// SPDX-License-Identifier: MIT
// Ranks as threads of one process. A team is their shared mailbox; each rank has an engine over it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/engine.hpp"

namespace sheaf::threads {

// One end of a message; the mailbox holds it, and so its memory, until it has met the other end.
struct message {
  memory bytes;
  bool done = false;
};

class team {
 public:
  // Known to find() as "threads:<id>/<rank>" for as long as it lives.
  static std::shared_ptr<team> create(int world, std::chrono::milliseconds timeout);
  ~team();

  int world() const { return static_cast<int>(engines_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }
  std::string name() const;          // "threads:<id>"
  std::string name(int rank) const;  // "threads:<id>/<rank>"

  std::shared_ptr<message> post_send(int from, int to, std::uint32_t tag, memory bytes);
  std::shared_ptr<message> post_receive(int from, int to, std::uint32_t tag, memory bytes);
  // Throws rank_error when `peer` has left.
  bool wait(const message& end, int peer, std::chrono::steady_clock::time_point until);
  // `rank` takes part no more; whoever waits for it is told why.
  void leave(int rank, const std::string& why);

  void publish(int rank, const std::string& text);
  std::optional<std::string> published(int rank);

  sheaf::engine& engine(int rank) { return *engines_[rank]; }

 private:
  using ends = std::deque<std::shared_ptr<message>>;
  using address = std::tuple<int, int, std::uint32_t>;  // from, to, tag
  team(int world, std::chrono::milliseconds timeout);
  std::shared_ptr<message> meet(std::map<address, ends>& mine, std::map<address, ends>& theirs, const address& where,
                                memory bytes, bool sending);

  const int id_;
  const std::chrono::milliseconds timeout_;
  std::vector<std::unique_ptr<sheaf::engine>> engines_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<address, ends> sends_;
  std::map<address, ends> receives_;
  std::map<int, std::string> notes_;
  std::map<int, std::string> left_;
};

// The engine behind "threads:<id>/<rank>", keeping its team alive. Throws value_error when there is none.
std::shared_ptr<sheaf::engine> find(const std::string& name);
bool is_name(const std::string& group);

}  // namespace sheaf::threads
