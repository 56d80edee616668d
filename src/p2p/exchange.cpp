// SPDX-License-Identifier: MIT
// Learn: one frame from every rank to every rank, in one round.
#include <sheaf/error.hpp>

#include "core/skips.hpp"
#include "core/verdict.hpp"
#include "p2p/engine.hpp"
#include "p2p/posting.hpp"

namespace sheaf::p2p {
namespace {

// Ranks in step are in the same call within this; then all of them raise the same text, whoever refused.
constexpr std::chrono::seconds refusal_grace{1};
constexpr std::chrono::milliseconds farewell{50};

std::string text_of(std::span<const std::byte> payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

}  // namespace

void engine::send_greeting(patience& waiting) {
  if (greeting_sent_) return;
  greeting_sent_ = true;
  const auto text = settings_.text();
  greetings_[rank()] = text;
  posting messages(*link_, waiting);  // left to the channel: nobody here waits for it
  mail_.send(messages, header{}, std::as_bytes(std::span(text)));
}

void engine::hear_greetings(patience& waiting) {
  if (ready_) return;
  for (int peer = 0; peer < world(); ++peer) {
    if (greetings_[peer]) continue;
    const auto said = mail_.receive(peer, 0, waiting);
    greetings_[peer] = said ? text_of(said->payload) : "another protocol version of Sheaf, or something else";
  }
  std::vector<std::string> texts;
  for (const auto& text : greetings_) texts.push_back(*text);
  for (const auto& text : texts) {
    if (text != texts[0]) throw value_error("ranks disagree on settings: " + group_by_value(texts));
  }
  ready_ = true;
}

void engine::greet(patience& waiting) {
  if (ready_) return;
  const std::lock_guard lock(mail_mutex_);
  send_greeting(waiting);
  hear_greetings(waiting);
}

const heard& engine::exchange(const call& now, const payload& data) {
  patience waiting(*link_, now);
  const std::lock_guard lock(mail_mutex_);
  send_greeting(waiting);
  posting messages(*link_, waiting);
  const auto own = data.written(now.numbers);
  mail_.send(messages, now.head, *own);
  hear_greetings(waiting);
  std::vector<std::optional<frame>> frames;
  for (int peer = 0; peer < world(); ++peer) {
    frames.push_back(peer == rank() ? frame{now.head, *own, own} : mail_.receive(peer, now.head.sequence, waiting));
  }
  // Whoever sent a frame has room for one. A rank that refuses call after call without looking has not, and the
  // channel keeps what it will read later.
  messages.leave(std::chrono::steady_clock::now() + farewell);
  waiting.finish();
  heard_.begin(now);
  heard_.set(std::move(frames));
  return heard_;
}

patience engine::on_the_way(const call& now) {
  return patience(*link_, now, {}, [this, &now](int peer) { compare_after_all(peer, now); });
}

void engine::compare_after_all(int peer, const call& now) {
  if (now.has_headers()) return;
  {
    const std::unique_lock lock(mail_mutex_, std::try_to_lock);
    if (!lock || !mail_.holds(peer, now.head.sequence)) return;
  }
  const auto& all = exchange(now, {});
  if (const auto error = all.verdict()) throw disagreement(*error, all.given_up());
}

void engine::report(const call& now, const std::string& said) { patience(*link_, now).tell_others(said); }

std::vector<std::optional<frame>> engine::refuse(const call& now) {
  patience waiting(*link_, now);
  const auto refused = "refused " + describe_call(now) + ": " + now.head.refusal;
  waiting.tell_others(refused);
  const std::lock_guard lock(mail_mutex_);
  send_greeting(waiting);
  posting messages(*link_, waiting);
  mail_.send(messages, now.head, {});
  try {
    for (int peer = 0; peer < world(); ++peer) {
      if (peer != rank()) mail_.stand_ready(peer);
    }
    if (!now.has_headers()) return {};  // large blocks come without a frame
    const auto until = std::chrono::steady_clock::now() + refusal_grace;
    std::vector<std::optional<frame>> frames;
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank()) {
        frames.emplace_back(frame{now.head, {}});
        continue;
      }
      if (!greetings_[peer]) {  // comes first, and is kept for the call that compares it
        if (!mail_.has(peer, 0, until)) return {};
        const auto said = mail_.receive(peer, 0, waiting);
        greetings_[peer] = said ? text_of(said->payload) : std::string();
      }
      if (!mail_.has(peer, now.head.sequence, until)) return {};
      frames.push_back(mail_.receive(peer, now.head.sequence, waiting));
    }
    return frames;
  } catch (const left_behind&) {
    waiting.tell_others(refused);  // its own mistake is what this rank has to tell
    throw;
  } catch (const rank_error&) {
    return {};  // likewise; the next call will find the peer gone
  }
}

}  // namespace sheaf::p2p
