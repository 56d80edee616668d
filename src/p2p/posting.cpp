// SPDX-License-Identifier: MIT
#include "p2p/posting.hpp"

#include <algorithm>

namespace sheaf::p2p {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

posting::~posting() {
  for (auto& message : entries_) {
    if (message.under_way) link_.keep(std::move(message.under_way));
  }
}

bool posting::entry::is_done(clock::time_point until) {
  try {
    if (under_way && under_way->wait(until)) under_way.reset();
  } catch (const rank_error&) {
    under_way.reset();
    throw;
  }
  return !under_way;
}

template <class Post>
std::size_t posting::post(int peer, Post&& start) {
  try {
    entries_.push_back({peer, start()});
  } catch (const rank_error& error) {
    waiting_.lost(peer, error.what());
  }
  return entries_.size() - 1;
}

std::size_t posting::send(int peer, std::uint32_t tag, memory bytes) {
  return post(peer, [&] { return link_.send(peer, tag, std::move(bytes)); });
}

std::size_t posting::receive(int peer, std::uint32_t tag, memory bytes) {
  return post(peer, [&] { return link_.receive(peer, tag, std::move(bytes)); });
}

void posting::wait(std::size_t number) {
  auto& message = entries_[number];
  waiting_.wait(
      message.peer, [&](clock::time_point until) { return message.is_done(until); }, [&] { return missing_peers(); });
}

void posting::wait_all() {
  for (std::size_t number = 0; number < entries_.size(); ++number) wait(number);
}

void posting::leave(clock::time_point until) {
  for (auto& message : entries_) {
    try {
      if (!message.is_done(until)) return;
    } catch (const rank_error&) {
      // The next call will find the peer gone.
    }
  }
}

std::vector<int> posting::missing_peers() {
  std::vector<int> missing;
  for (auto& message : entries_) {
    if (std::find(missing.begin(), missing.end(), message.peer) != missing.end()) continue;
    try {
      if (!message.is_done(clock::now() + 5ms)) missing.push_back(message.peer);
    } catch (const rank_error&) {
      missing.push_back(message.peer);
    }
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

}  // namespace sheaf::p2p
