// SPDX-License-Identifier: MIT
#include "core/patience.hpp"

#include <algorithm>
#include <thread>

#include "core/interrupt.hpp"
#include "core/skips.hpp"
#include "core/verdict.hpp"

namespace sheaf {
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

clock::time_point patience::slice_end() const { return std::min(clock::now() + wait_slice, now_.started + limit()); }

void patience::pause() {
  throw_if_interrupted();
  if (spoken_ || clock::now() < now_.started + std::min<clock::duration>(longest_silence, limit() / 2)) return;
  spoken_ = true;
  tell_others("is in " + describe_call(now_));
}

void patience::tell_others(const std::string& said) {
  link_.publish(note{link_.name(), now_.head.sequence, said}.encode());
  link_.owes_news = true;
}

void patience::finish() {
  if (!link_.owes_news.load(std::memory_order_relaxed) || !link_.owes_news.exchange(false)) return;
  link_.publish(note{link_.name(), now_.head.sequence, "finished " + title(now_.head)}.encode());
}

std::optional<note> patience::note_of(int peer) {
  const auto text = link_.published(peer);
  return text ? note::decode(*text) : std::nullopt;
}

std::optional<note> patience::last_of(int peer) {
  auto left = note_of(peer);
  if (!seen_ || is_current(left, link_.name(), now_.head.sequence)) return left;
  auto seen = seen_(peer);
  const bool is_older = left && seen && left->group == seen->group && left->sequence >= seen->sequence;
  return seen && !is_older ? seen : left;
}

void patience::give_up(const std::vector<int>& missing) {
  tell_others("gave up " + describe_call(now_));
  std::string text = title(now_.head) + ": no answer from " + rank_list(missing) + " within " + seconds(limit());
  const auto enough = clock::now() + note_grace;
  for (const int peer : missing) {
    auto left = note_of(peer);
    while (!is_current(left, link_.name(), now_.head.sequence) && clock::now() < enough) {
      throw_if_interrupted();
      std::this_thread::sleep_for(20ms);
      left = note_of(peer);
    }
    text += "; " + tell(peer, last_of(peer), link_.name(), now_.head.sequence);
  }
  throw rank_error(text + here());
}

std::string patience::here() const {
  return ". This rank is in " + describe_call(now_) + " of group \"" + link_.name() + "\"";
}

void patience::deserted(int peer, std::uint64_t last) {
  tell_others("gave up " + describe_call(now_));
  throw left_behind(title(now_.head) + ": " + tell(peer, last_of(peer), link_.name(), now_.head.sequence) +
                        ", and left this call" + here(),
                    last - now_.head.sequence);
}

void patience::passed(int peer, const header& later) {
  tell_others("gave up " + describe_call(now_));
  throw left_behind(title(now_.head) + ": rank " + std::to_string(peer) + " is past it, in " + describe(later) + here(),
                    later.sequence - 1 - now_.head.sequence);
}

void patience::lost(int peer, const std::string& why) {
  tell_others("lost rank " + std::to_string(peer) + " in " + describe_call(now_));
  const auto left = last_of(peer);
  const auto last = left ? ", which " + left->said : std::string();
  throw rank_error(title(now_.head) + ": lost rank " + std::to_string(peer) + last + ": " + why +
                   ". The group cannot be used any more: destroy it and make a new one");
}

}  // namespace sheaf
