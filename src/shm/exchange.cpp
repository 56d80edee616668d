// SPDX-License-Identifier: MIT
// Learn: every rank's frame lies in its slot. One round.
#include <algorithm>
#include <cstring>
#include <sheaf/error.hpp>
#include <utility>

#include "core/skips.hpp"
#include "shm/engine.hpp"

namespace sheaf::shm {
namespace {

// Ranks in step are in the same call within this; then all of them raise the same text, whoever refused.
constexpr std::chrono::seconds refusal_grace{1};
constexpr std::size_t largest_head = head_capacity - 64;
// Payloads from here on are timed.
constexpr std::size_t worth_timing = std::size_t{16} << 10;
static_assert(header_capacity <= largest_head);

// Lines of what will be read, as many as can be under way: they come at once, not one after the other.
void fetch_ahead(const std::byte* from, payload::part wanted) {
  constexpr std::size_t line = 64, enough = 16 * line;
  const auto end = wanted.first + std::min(wanted.bytes, enough);
  for (auto at = wanted.first; at < end; at += line) __builtin_prefetch(from + at);
}

bool has_place(const slot& of) { return of.payload_at + std::size_t{of.payload_bytes} <= sizeof of.bytes; }

}  // namespace

// The slot holds the frame of call `sequence - ring_slots`: a peer that posted a later call, or left that one, reads it
// no more.
bool engine::may_post(int peer, std::uint64_t sequence) const {
  return seen_[peer] + ring_slots > sequence || has_left(peer, sequence - ring_slots);
}

bool engine::has_posted(int peer, std::uint64_t sequence) const {
  return place_->slot_of(peer, sequence).posted.load(std::memory_order_acquire) == sequence;
}

bool engine::has_left(int peer, std::uint64_t sequence) const {
  return of(peer).left.load(std::memory_order_acquire) >= sequence;
}

void engine::post(const call& now, const payload& data) {
  auto& own = place_->slot_of(rank_, now.head.sequence);
  const auto sizes = std::as_bytes(std::span(now.numbers));
  if (sizes.size() + data.bytes > payload_capacity) throw std::length_error("a frame's payload is too long");
  own.head_bytes = static_cast<std::uint16_t>(encode_header(now.head, std::span(own.bytes).first(largest_head)));
  own.payload_at = static_cast<std::uint16_t>((own.head_bytes + sizes.size() + 63) / 64 * 64 - sizes.size());
  own.payload_bytes = static_cast<std::uint32_t>(sizes.size() + data.bytes);
  auto* const to = std::ranges::copy(sizes, own.bytes + own.payload_at).out;
  const auto next = way_of(heard_ways_.next, size_class(movement::frame, static_cast<std::int64_t>(data.bytes)));
  if (data.bytes > 0) data.write_to(to, data.bytes >= worth_timing ? next : readers::near);
  own.gist = gist(now.head, now.numbers);
  if (own.gist != 0) own.rows = now.head.tensors[0].rows();
  own.unused_segments = pool_->unused();
  if (rank_ == 0) {
    pool_->write_resident(own, now.head.sequence);
    own.past_caches = habits_.now();
  }
  cores_.take(rank_, ::sched_getcpu());
  own.core = static_cast<std::int16_t>(cores_.of(rank_));
  shm::publish(of(rank_), own.posted, now.head.sequence);
}

// Nothing: what lies there is no frame of this call.
std::optional<frame> engine::frame_of(int peer, std::uint64_t sequence) const {
  const auto& theirs = place_->slot_of(peer, sequence);
  if (!has_posted(peer, sequence) || theirs.head_bytes > largest_head || !has_place(theirs)) return std::nullopt;
  auto read = decode({theirs.bytes, theirs.head_bytes});
  if (read) read->payload = {theirs.bytes + theirs.payload_at, theirs.payload_bytes};
  return read;
}

std::vector<std::optional<frame>> engine::frames_of(std::uint64_t sequence) const {
  std::vector<std::optional<frame>> frames;
  for (int peer = 0; peer < world_; ++peer) frames.push_back(frame_of(peer, sequence));
  return frames;
}

std::optional<heard::answer> engine::answer_of(int peer, std::uint64_t sequence) const {
  const auto& own = place_->slot_of(rank_, sequence);
  const auto& theirs = place_->slot_of(peer, sequence);
  if (own.gist == 0 || theirs.gist != own.gist || !has_place(theirs)) return std::nullopt;
  // As long as the own header: the payload lies where the own one does, and can be asked for at once.
  return heard::answer{
      theirs.rows, {theirs.bytes, own.head_bytes}, {theirs.bytes + own.payload_at, theirs.payload_bytes}};
}

readers engine::readers_of(const header& head, std::int64_t bytes) const {
  const auto& ways = place_->slot_of(0, head.sequence).past_caches;
  const bool is_timed = head.op != operation::all_gather_coalesced;
  return way_of(is_timed ? ways.next : ways.best, size_class(movement_of(head), bytes));
}

census engine::census_of(std::uint64_t sequence) const {
  census all{~std::uint64_t{0}, place_->slot_of(0, sequence).resident_pages};
  for (int peer = 0; peer < world_; ++peer) all.unused &= place_->slot_of(peer, sequence).unused_segments;
  return all;
}

const heard& engine::exchange(const call& now, const payload& data) {
  const auto sequence = now.head.sequence;
  auto waiting = patience_for(now);
  for (int turn = 1; turn < world_; ++turn) {
    await(waiting, (rank_ + turn) % world_, [&](int one) { return may_post(one, sequence); });
  }
  post(now, data);
  for (int turn = 1; turn < world_; ++turn) {
    const int peer = (rank_ + turn) % world_;
    // Its other words are left alone at first: a look would make it wait when it changes them.
    if (!is_there_at_once([&] { return has_posted(peer, sequence); }, tries_for(peer))) {
      await_longer(waiting, peer, [&](int one) { return has_posted(one, sequence) || has_left(one, sequence); });
      // What it posted before it left was published before that.
      if (!has_posted(peer, sequence)) throw_deserted(waiting, peer);
    }
    seen_[peer] = sequence;
    cores_.take(peer, place_->slot_of(peer, sequence).core);
  }
  hear(now, data);
  waiting.finish();
  return heard_;
}

void engine::hear(const call& now, const payload& mine) {
  const auto sizes = now.numbers.size() * sizeof(std::int64_t);
  heard_.begin(now);
  const auto ways = std::exchange(heard_ways_, place_->slot_of(0, now.head.sequence).past_caches);
  for (int peer = 0; peer < world_; ++peer) {
    const auto answer = answer_of(peer, now.head.sequence);
    if (!answer) return heard_.set(frames_of(now.head.sequence));
    const auto data = answer->payload.subspan(sizes);
    const auto part = mine.wanted.value_or(payload::part{0, data.size()});
    if (rank_ == 0 && peer == 1) learn_from_frame(data, part, mine.write ? std::nullopt : std::optional(ways));
    if (peer != rank_) fetch_ahead(data.data(), part);
    heard_.add(*answer);
  }
}

void engine::learn_from_frame(std::span<const std::byte> data, payload::part wanted, std::optional<habits::ways> ways) {
  if (data.size() < worth_timing) return;
  const auto of = size_class(movement::frame, static_cast<std::int64_t>(data.size()));
  if (!ways || wanted.bytes < worth_timing) return habits_.pass(of);
  time_reading(of, way_of(ways->next, of), data.data() + wanted.first, wanted.bytes);
}

// A part from the middle, which the caches of whoever wrote it hold, if any does. It will be read anyway.
void engine::time_reading(int of, readers way, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t line = 64, enough = std::size_t{16} << 10;
  const auto part = std::min(bytes, enough);
  const auto* at = from + (bytes - part) / 2 / line * line;
  const auto begin = clock::now();  // it is over too soon to be interrupted often
  std::uint8_t all = 0;
  for (std::size_t i = 0; i < part; i += line) all ^= std::to_integer<std::uint8_t>(at[i]);
  asm volatile("" ::"r"(all));
  habits_.learn(of, way, std::chrono::duration<double>(clock::now() - begin).count() / static_cast<double>(part));
}

std::vector<std::optional<frame>> engine::refuse(const call& now) {
  const auto sequence = now.head.sequence;
  auto waiting = patience_for(now);
  waiting.tell_others("refused " + describe_call(now) + ": " + now.head.refusal);
  const auto until = clock::now() + refusal_grace;
  const auto within_grace = [&](int peer, auto&& ready) {
    const auto is_there = [&] { return ready(peer); };
    return peer == rank_ || is_there_at_once(is_there, tries_for(peer)) || is_soon(is_there) ||
           sleep_until(of(peer), is_there, until);
  };
  for (int peer = 0; peer < world_; ++peer) {
    if (!within_grace(peer, [&](int one) { return may_post(one, sequence); })) return {};
  }
  post(now, {});
  for (int peer = 0; peer < world_; ++peer) {
    if (!within_grace(peer, [&](int one) { return has_posted(one, sequence) || has_left(one, sequence); })) return {};
    if (has_posted(peer, sequence)) continue;
    throw left_behind(title(now.head) + ": rank " + std::to_string(peer) + " is past it",
                      of(peer).left.load(std::memory_order_acquire) - sequence);
  }
  return frames_of(sequence);
}

}  // namespace sheaf::shm
