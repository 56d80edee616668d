// SPDX-License-Identifier: MIT
// Learn: one frame from every rank to every rank, in one round.
#include <cstring>
#include <sheaf/error.hpp>
#include <string_view>

#include "core/verdict.hpp"
#include "p2p/engine.hpp"

namespace sheaf::p2p {
namespace {

// Ranks in step are in the same call within this; then all of them raise the same text, whoever refused.
constexpr std::chrono::milliseconds refusal_grace{250};

}  // namespace

engine::round engine::post_frames(posting& messages, const header& head, std::span<const std::byte> payload) {
  round posted;
  const auto bytes = encode(head, payload);
  posted.own = allocate(bytes.size());
  std::memcpy(posted.own.data, bytes.data(), bytes.size());
  const auto tag = frame_tag(head);
  const auto all = allocate(frame_capacity * world());
  for (int peer = 0; peer < world(); ++peer) {
    posted.frames.push_back(peer == rank() ? posted.own : all.slice(frame_capacity * peer, frame_capacity));
    if (peer != rank()) messages.receive(peer, tag, posted.frames.back());
  }
  for (int step = 1; step < world(); ++step) messages.send((rank() + step) % world(), tag, posted.own);
  return posted;
}

std::vector<std::optional<frame>> engine::read_frames(const round& posted) const {
  std::vector<std::optional<frame>> frames;
  for (const auto& bytes : posted.frames) frames.push_back(decode({bytes.data, bytes.size}));
  return frames;
}

void engine::post_greeting(const call& now) {
  if (!greeting_) {
    greeting_ = std::make_unique<greeting>(*link_, now);
    const auto text = settings_.text();
    greeting_->posted = post_frames(greeting_->messages, header{}, std::as_bytes(std::span(text)));
  }
  greeting_->now = now;
}

void engine::greet(const call& now) {
  if (ready_) return;
  const std::lock_guard lock(greeting_mutex_);
  if (ready_) return;
  post_greeting(now);
  greeting_->messages.wait_step();

  const auto frames = read_frames(greeting_->posted);
  if (const auto error = verdict(frames)) throw value_error(*error);
  std::vector<std::string> texts;
  for (const auto& said : frames) {
    texts.emplace_back(reinterpret_cast<const char*>(said->payload.data()), said->payload.size());
  }
  for (const auto& text : texts) {
    if (text != texts[0]) throw value_error("ranks disagree on settings: " + group_by_value(texts));
  }
  ready_ = true;
  greeting_.reset();
}

std::vector<std::optional<frame>> engine::exchange(const call& now, std::span<const std::byte> payload) {
  greet(now);
  posting messages(*link_, now);
  const auto posted = post_frames(messages, now.head, payload);
  messages.wait_all();
  return read_frames(posted);
}

std::vector<std::optional<frame>> engine::refuse(const call& now) {
  leave_note(*link_, now, "refused " + describe(now) + ": " + now.head.refusal);
  if (!ready_) {
    const std::lock_guard lock(greeting_mutex_);
    if (!ready_) post_greeting(now);
  }
  if (now.head.sized && !settings_.check) return {};  // nobody listens for a frame
  posting messages(*link_, now);
  const auto posted = post_frames(messages, now.head, {});
  if (!messages.try_wait_all(std::chrono::steady_clock::now() + refusal_grace)) return {};
  return read_frames(posted);
}

}  // namespace sheaf::p2p
