// SPDX-License-Identifier: MIT
// Learn: every rank's frame lies in its slot. One round.
#include <algorithm>
#include <cstring>
#include <sheaf/error.hpp>

#include "shm/engine.hpp"

namespace sheaf::shm {
namespace {

// Ranks in step are in the same call within this; then all of them raise the same text, whoever refused.
constexpr std::chrono::seconds refusal_grace{1};
constexpr std::size_t largest_head = head_capacity - 64;
static_assert(header_capacity <= largest_head);

std::size_t bytes_in(const slot& of) {
  return static_cast<std::size_t>(of.payload() - reinterpret_cast<const std::byte*>(&of)) + of.payload_bytes;
}

// A frame is mostly as long as the own one: all of its lines come at once, not one when the last has told of it.
void fetch_ahead(const slot& of, std::size_t bytes) {
  constexpr std::size_t line = 64, enough = 16 * line;
  for (std::size_t at = line; at < std::min(bytes, enough); at += line) {
    __builtin_prefetch(reinterpret_cast<const std::byte*>(&of) + at);
  }
}

}  // namespace

// The slot holds the frame of call `sequence - ring_slots`: a peer that posted a later call, or left that one, reads it
// no more.
bool engine::may_post(int peer, std::uint64_t sequence) const {
  if (sequence <= ring_slots) return true;
  const auto& one = of(peer);
  // In this order: what it posted was looked at a moment ago, what it left has changed since.
  return one.posted.load(std::memory_order_acquire) + ring_slots > sequence ||
         one.left.load(std::memory_order_acquire) + ring_slots >= sequence;
}

bool engine::has_posted(int peer, std::uint64_t sequence) const {
  return of(peer).posted.load(std::memory_order_acquire) >= sequence;
}

bool engine::has_left(int peer, std::uint64_t sequence) const {
  return of(peer).left.load(std::memory_order_acquire) >= sequence;
}

void engine::post(const call& now, const payload& data) {
  auto& own = place_->slot_of(rank_, now.head.sequence);
  own.sequence = now.head.sequence;
  own.unused_segments = pool_->unused();
  if (rank_ == 0) {
    pool_->write_resident(own);
    own.past_caches = habits_.now();
  }
  own.head_bytes = static_cast<std::uint16_t>(encode_header(now.head, std::span(own.bytes).first(largest_head)));
  own.payload_bytes = static_cast<std::uint32_t>(data.bytes);
  if (data.bytes > 0) data.write(own.payload());
  of(rank_).core.store(::sched_getcpu(), std::memory_order_relaxed);
  publish(&board::posted, now.head.sequence);
}

std::span<const std::byte> engine::own_head(std::uint64_t sequence) const {
  const auto& own = place_->slot_of(rank_, sequence);
  return {own.bytes, own.head_bytes};
}

// Nothing: what lies there is no frame of this call.
std::optional<frame> engine::frame_of(int peer, std::uint64_t sequence, const header* like) const {
  const auto& theirs = place_->slot_of(peer, sequence);
  if (theirs.sequence != sequence || theirs.head_bytes > largest_head || theirs.payload_bytes > payload_capacity) {
    return std::nullopt;
  }
  auto read = like ? decode_like(*like, own_head(sequence), {theirs.bytes, theirs.head_bytes})
                   : decode({theirs.bytes, theirs.head_bytes});
  if (read) read->payload = {theirs.payload(), theirs.payload_bytes};
  return read;
}

std::vector<std::optional<frame>> engine::frames_of(const call& now) const {
  const auto& own = place_->slot_of(rank_, now.head.sequence);
  std::vector<std::optional<frame>> frames(world_);
  for (int peer = 0; peer < world_; ++peer) {
    if (peer == rank_) {
      frames[peer] = frame{now.head, {own.payload(), own.payload_bytes}};
    } else {
      frames[peer] = frame_of(peer, now.head.sequence, &now.head);
    }
  }
  return frames;
}

readers engine::readers_of(const header& head, std::int64_t bytes) const {
  const auto& ways = place_->slot_of(0, head.sequence).past_caches;
  return way_of(is_reduction(head.op) ? ways.next : ways.best, size_class(bytes, head.tensors[0].type));
}

census engine::census_of(std::uint64_t sequence) const {
  census all{~std::uint64_t{0}, place_->slot_of(0, sequence).resident_pages};
  for (int peer = 0; peer < world_; ++peer) all.unused &= place_->slot_of(peer, sequence).unused_segments;
  return all;
}

std::vector<std::optional<frame>> engine::exchange(const call& now, const payload& data) {
  if (data.bytes > payload_capacity) throw std::length_error("a frame's payload is too long");
  const auto sequence = now.head.sequence;
  auto waiting = patience_for(now);
  for (int turn = 1; turn < world_; ++turn) {
    await(waiting, (rank_ + turn) % world_, [&](int one) { return may_post(one, sequence); });
  }
  post(now, data);
  const auto own_bytes = bytes_in(place_->slot_of(rank_, sequence));
  for (int turn = 1; turn < world_; ++turn) {
    const int peer = (rank_ + turn) % world_;
    // Its other words are left alone at first: a look would make it wait when it changes them.
    if (!is_there_at_once([&] { return has_posted(peer, sequence); })) {
      await(waiting, peer, [&](int one) { return has_posted(one, sequence) || has_left(one, sequence); });
    }
    fetch_ahead(place_->slot_of(peer, sequence), own_bytes);
    // The next frame in that slot waits until this rank is done with this call.
    if (place_->slot_of(peer, sequence).sequence != sequence) throw_deserted(waiting, peer);
  }
  auto frames = frames_of(now);
  waiting.finish();
  return frames;
}

std::vector<std::optional<frame>> engine::refuse(const call& now) {
  const auto sequence = now.head.sequence;
  auto waiting = patience_for(now);
  waiting.tell_others("refused " + describe_call(now) + ": " + now.head.refusal);
  const auto until = clock::now() + refusal_grace;
  const auto within_grace = [&](int peer, auto&& ready) {
    const auto is_there = [&] { return ready(peer); };
    return peer == rank_ || is_there_at_once(is_there) || is_soon(is_there) || sleep_until(of(peer), is_there, until);
  };
  for (int peer = 0; peer < world_; ++peer) {
    if (!within_grace(peer, [&](int one) { return may_post(one, sequence); })) return {};
  }
  post(now, {});
  for (int peer = 0; peer < world_; ++peer) {
    if (!within_grace(peer, [&](int one) { return has_posted(one, sequence); })) return {};
    if (place_->slot_of(peer, sequence).sequence != sequence) return {};
  }
  return frames_of(now);
}

}  // namespace sheaf::shm
