// SPDX-License-Identifier: MIT
// Move: every rank writes its block once, to its place in a segment that all of them see: N / W bytes a rank, whatever
// the dim. Where the result must be private, the others' blocks are copied out of the segment.
#include <algorithm>

#include "core/copy.hpp"
#include "shm/engine.hpp"

namespace sheaf::shm {

void engine::all_gather(const call& now, const layout& at, memory own, memory result) {
  spread_out();
  auto waiting = patience_for(now);
  if (const auto segment = segment_for(now, at.bytes())) {
    gather_in_segment(waiting, at, *segment, own, result);
  } else {
    gather_in_steps(waiting, at, own, result);
  }
  waiting.finish();
}

void engine::gather_in_segment(patience& waiting, const layout& at, int segment, const memory& own,
                               const memory& result) {
  auto* shared = place_->shared(segment);
  const auto first = at.outer == 1 ? static_cast<std::size_t>(at.block_offset(rank_)) : 0;
  pool_->warm_for_writing(segment, first, at.outer == 1 ? own.size : result.size);
  const auto next = readers_of(waiting.now().head, at.bytes());
  place(at, rank_, own.data, shared, next);
  publish(&board::progress, moment(waiting.now().head.sequence, 1));
  if (result.data == place_->view(segment)) {
    await_step_of_all(waiting, 1, &board::progress);
    pool_->warm_for_reading(segment, result.size);
    if (rank_ == 0) learn_from_result(at, next, result.data);
    return;
  }
  if (rank_ == 0) habits_.pass(size_class(movement::gather, at.bytes()));
  place(at, rank_, own.data, result.data);
  for (int turn = 1; turn < world_; ++turn) {
    const int peer = (rank_ + turn) % world_;
    await_step(waiting, peer, 1, &board::progress);
    copy_block(at, peer, shared, result.data);
  }
}

// By the largest block of another rank, or what is in one run of it.
void engine::learn_from_result(const layout& at, readers way, const std::byte* result) {
  constexpr std::int64_t shortest = std::int64_t{4} << 10;
  const auto others = std::span(at.sizes).subspan(1);
  const auto peer = static_cast<int>(std::ranges::max_element(others) - others.begin()) + 1;
  const auto run = at.block_chunk_bytes(peer);
  const auto of = size_class(movement::gather, at.bytes());
  if (at.bytes() < worth_learning || run < shortest) return habits_.pass(of);
  time_reading(of, way, result + at.outer / 2 * at.chunk_bytes() + at.block_offset(peer),
               static_cast<std::size_t>(run));
}

void engine::gather_in_steps(patience& waiting, const layout& at, const memory& own, const memory& result) {
  constexpr auto half = static_cast<std::int64_t>(geometry::staging_bytes / 2);
  const auto sequence = waiting.now().head.sequence;
  const auto next = readers_of(waiting.now().head, at.bytes());
  std::int64_t longest = 0;
  for (int peer = 0; peer < world_; ++peer) longest = std::max(longest, at.block_bytes(peer));
  const auto part = [&](int peer, std::int64_t step) {
    return std::clamp<std::int64_t>(at.block_bytes(peer) - step * half, 0, half);
  };

  if (rank_ == 0) habits_.pass(size_class(movement::gather, at.bytes()));
  place(at, rank_, own.data, result.data);
  for (std::int64_t step = 0; step * half < longest; ++step) {
    // Two buffers: the one of the step before the last is free once all have read it.
    if (step >= 2) await_step_of_all(waiting, step - 1, &board::consumed);
    const auto offset = step % 2 * half;
    if (const auto bytes = part(rank_, step)) {
      stream_or_copy(place_->staging(rank_) + offset, own.data + step * half, bytes, next);
    }
    publish(&board::progress, moment(sequence, step + 1));
    for (int turn = 1; turn < world_; ++turn) {
      const int peer = (rank_ + turn) % world_;
      if (part(peer, step) == 0) continue;
      await_step(waiting, peer, step + 1, &board::progress);
      unpack(at, peer, step * half, part(peer, step), place_->staging(peer) + offset, result.data);
    }
    publish(&board::consumed, moment(sequence, step + 1));
  }
}

}  // namespace sheaf::shm
