// SPDX-License-Identifier: MIT
#include "threads/team.hpp"

#include <charconv>
#include <cstring>
#include <sheaf/error.hpp>
#include <string_view>

#include "core/settings.hpp"
#include "p2p/engine.hpp"
#include "threads/channel.hpp"

namespace sheaf::threads {
namespace {

constexpr std::string_view prefix = "threads:";

struct roll {
  std::mutex mutex;
  std::map<int, std::weak_ptr<team>> teams;
  int last = 0;
};

// Never destroyed: groups may be asked for while the process ends.
roll& all_teams() {
  static auto* teams = new roll;
  return *teams;
}

int next_id() {
  const std::lock_guard lock(all_teams().mutex);
  return ++all_teams().last;
}

}  // namespace

team::team(int world, std::chrono::milliseconds timeout) : id_(next_id()), timeout_(timeout) {
  const auto with = read_settings();
  for (int rank = 0; rank < world; ++rank) {
    engines_.push_back(std::make_unique<p2p::engine>(std::make_shared<channel>(*this, rank, world), with));
  }
}

std::shared_ptr<team> team::create(int world, std::chrono::milliseconds timeout) {
  if (world < 1) throw value_error("a group of threads needs 1 rank or more, got " + std::to_string(world));
  std::shared_ptr<team> made(new team(world, timeout));
  const std::lock_guard lock(all_teams().mutex);
  all_teams().teams[made->id_] = made;
  return made;
}

team::~team() {
  const std::lock_guard lock(all_teams().mutex);
  all_teams().teams.erase(id_);
}

std::string team::name() const { return std::string(prefix) + std::to_string(id_); }

std::string team::name(int rank) const { return name() + "/" + std::to_string(rank); }

std::shared_ptr<message> team::meet(std::map<address, ends>& mine, std::map<address, ends>& theirs,
                                    const address& where, memory bytes, bool sending) {
  const auto end = std::make_shared<message>(message{std::move(bytes)});
  const std::lock_guard lock(mutex_);
  const auto waiting = theirs.find(where);
  if (waiting == theirs.end()) {
    mine[where].push_back(end);
    return end;
  }
  const auto other = waiting->second.front();
  waiting->second.pop_front();
  if (waiting->second.empty()) theirs.erase(waiting);
  const auto& from = sending ? end->bytes : other->bytes;
  const auto& to = sending ? other->bytes : end->bytes;
  if (from.size > to.size) throw rank_error("a message is longer than its receiver expects");
  if (from.size > 0) std::memcpy(to.data, from.data, from.size);
  end->done = other->done = true;
  end->bytes = other->bytes = {};
  changed_.notify_all();
  return end;
}

std::shared_ptr<message> team::post_send(int from, int to, std::uint32_t tag, memory bytes) {
  return meet(sends_, receives_, {from, to, tag}, std::move(bytes), true);
}

std::shared_ptr<message> team::post_receive(int from, int to, std::uint32_t tag, memory bytes) {
  return meet(receives_, sends_, {from, to, tag}, std::move(bytes), false);
}

bool team::wait(const message& end, int peer, std::chrono::steady_clock::time_point until) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, until, [&] { return end.done || left_.contains(peer); });
  if (!end.done && left_.contains(peer)) throw rank_error("its thread has left: " + left_[peer]);
  return end.done;
}

void team::leave(int rank, const std::string& why) {
  const std::lock_guard lock(mutex_);
  left_[rank] = why;
  changed_.notify_all();
}

void team::publish(int rank, const std::string& text) {
  const std::lock_guard lock(mutex_);
  notes_[rank] = text;
}

std::optional<std::string> team::published(int rank) {
  const std::lock_guard lock(mutex_);
  const auto note = notes_.find(rank);
  return note == notes_.end() ? std::nullopt : std::optional(note->second);
}

bool is_name(const std::string& group) { return group.starts_with(prefix); }

std::shared_ptr<sheaf::engine> find(const std::string& name) {
  int id = 0;
  int rank = -1;
  const char* end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + prefix.size(), end, id);
  if (parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == '/') {
    std::from_chars(parsed.ptr + 1, end, rank);
  }
  std::shared_ptr<team> alive;  // should this be the last one, it ends after the lock
  const std::lock_guard lock(all_teams().mutex);
  const auto found = all_teams().teams.find(id);
  if (found != all_teams().teams.end()) alive = found->second.lock();
  if (!alive || rank < 0 || rank >= alive->world()) throw value_error("there is no group \"" + name + "\"");
  return {alive, &alive->engine(rank)};
}

}  // namespace sheaf::threads
