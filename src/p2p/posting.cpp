// SPDX-License-Identifier: MIT
#include "p2p/posting.hpp"

#include <algorithm>
#include <sheaf/error.hpp>
#include <thread>

#include "core/interrupt.hpp"
#include "core/verdict.hpp"

namespace sheaf::p2p {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

// A rank that waits this long tells the others which call it is in, before anybody's deadline.
constexpr auto longest_silence = 2s;
// Deadlines do not strike at the same moment everywhere: how long to wait for another rank's note.
constexpr auto note_grace = 500ms;

std::string seconds(std::chrono::milliseconds time) {
  auto text = std::to_string(std::chrono::duration<double>(time).count());
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

posting::~posting() {
  for (auto& message : entries_) {
    if (message.under_way) link_.keep(std::move(message.under_way));
  }
}

void leave_note(channel& link, const call& now, const std::string& said) {
  link.publish(note{link.name(), now.head.sequence, said}.encode());
  link.owes_news = true;
}

template <class Post>
std::size_t posting::post(int peer, Post&& start) {
  try {
    entries_.push_back({peer, start()});
  } catch (const rank_error& error) {
    fail_lost(peer, error.what());
  }
  return entries_.size() - 1;
}

std::size_t posting::send(int peer, std::uint32_t tag, memory bytes) {
  return post(peer, [&] { return link_.send(peer, tag, std::move(bytes)); });
}

std::size_t posting::receive(int peer, std::uint32_t tag, memory bytes) {
  return post(peer, [&] { return link_.receive(peer, tag, std::move(bytes)); });
}

clock::time_point posting::deadline() const { return now_.started + now_.timeout.value_or(link_.timeout()); }

bool posting::advance(entry& message, clock::time_point until) {
  try {
    if (message.under_way->wait(until)) message.under_way.reset();
  } catch (const rank_error& error) {
    message.under_way.reset();
    fail_lost(message.peer, error.what());
  }
  return !message.under_way;
}

void posting::wait(std::size_t number) {
  auto& message = entries_[number];
  if (!message.under_way) return;
  const auto until = deadline();
  const auto speak = std::min(now_.started + longest_silence, now_.started + (until - now_.started) / 2);
  while (!advance(message, std::min(clock::now() + wait_slice, until))) {
    throw_if_interrupted();
    const auto moment = clock::now();
    if (moment >= speak && !spoken_) {
      spoken_ = true;
      leave_note(link_, now_, "is in " + describe(now_));
    }
    if (moment >= until) fail_late();
  }
}

void posting::wait_step() {
  for (std::size_t number = 0; number < entries_.size(); ++number) wait(number);
}

void posting::wait_all() {
  wait_step();
  if (link_.owes_news.exchange(false)) {
    link_.publish(note{link_.name(), now_.head.sequence, "finished " + title(now_.head)}.encode());
  }
}

bool posting::try_wait_all(clock::time_point until) {
  for (auto& message : entries_) {
    try {
      if (message.under_way && message.under_way->wait(until)) message.under_way.reset();
    } catch (const rank_error&) {
      message.under_way.reset();
      return false;
    }
    if (message.under_way) return false;
  }
  return true;
}

std::vector<int> posting::missing_peers() {
  std::vector<int> missing;
  for (auto& message : entries_) {
    if (!message.under_way || std::find(missing.begin(), missing.end(), message.peer) != missing.end()) continue;
    if (!advance(message, clock::now() + 5ms)) missing.push_back(message.peer);
  }
  std::sort(missing.begin(), missing.end());
  return missing;
}

std::optional<note> posting::note_of(int peer) {
  const auto text = link_.published(peer);
  return text ? note::decode(*text) : std::nullopt;
}

void posting::fail_late() {
  leave_note(link_, now_, "gave up " + describe(now_));
  const auto missing = missing_peers();
  std::string text = title(now_.head) + ": no answer from " + rank_list(missing) + " within " +
                     seconds(now_.timeout.value_or(link_.timeout()));
  const auto patience = clock::now() + note_grace;
  for (const int peer : missing) {
    auto left = note_of(peer);
    while (!is_current(left, link_.name(), now_.head.sequence) && clock::now() < patience) {
      throw_if_interrupted();
      std::this_thread::sleep_for(20ms);
      left = note_of(peer);
    }
    text += "; " + tell(peer, left, link_.name(), now_.head.sequence);
  }
  throw rank_error(text + ". This rank is in " + describe(now_) + " of group \"" + link_.name() + "\"");
}

void posting::fail_lost(int peer, const std::string& why) {
  leave_note(link_, now_, "lost rank " + std::to_string(peer) + " in " + describe(now_));
  const auto left = note_of(peer);
  const auto last = left ? ", which " + left->said : std::string();
  throw rank_error(title(now_.head) + ": lost rank " + std::to_string(peer) + last + ": " + why +
                   ". The group cannot be used any more: destroy it and make a new one");
}

}  // namespace sheaf::p2p
