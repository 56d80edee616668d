// SPDX-License-Identifier: MIT
// What the ranks of a group see of each other in shared memory: words that one rank writes and all read, and slots for
// frames. Nothing here knows of any one collective.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shm/habits.hpp"

namespace sheaf::shm {

// Of all that lies in shared memory, here and in header.hpp, and of what each rank works out by itself: plans, chunks,
// what is worth what. To be raised with any change.
inline constexpr int layout_version = 4;
// A rank may be this many frames ahead of the slowest reader of its frames.
inline constexpr std::uint64_t ring_slots = 4;
inline constexpr int segment_count = 64;
inline constexpr std::size_t max_ranks = 512;
inline constexpr std::size_t head_capacity = 5184;  // a frame's header without payload, up to the next cache line
inline constexpr std::size_t inline_capacity = std::size_t{64} << 10;
// Sizes given travel before the data.
inline constexpr std::size_t payload_capacity = inline_capacity + 8 * max_ranks;

// A point in a group's life: step `step` of the data phase of call `sequence`.
constexpr std::uint64_t moment(std::uint64_t sequence, std::uint64_t step) { return sequence << 24 | step; }

// One a rank. All words but `bell` and `sleepers` are written by that rank alone; the last three only grow.
struct alignas(128) board {
  std::atomic<bool> unfenced;           // it publishes without a fence: whoever sleeps by its bell has one for it
  std::atomic<std::uint32_t> bell;      // rung after each change, where somebody sleeps
  std::atomic<std::uint32_t> sleepers;  // who sleeps until it rings
  std::atomic<std::uint64_t> progress;  // the last moment whose data is there for others
  std::atomic<std::uint64_t> consumed;  // the last moment whose data of others this rank has read
  std::atomic<std::uint64_t> left;      // the last call this rank is done with, well or not
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

// A rank's frame of call k lies in its slot k mod ring_slots. All that most calls look at beside the payload is in its
// first cache line.
struct alignas(64) slot {
  std::atomic<std::uint64_t> posted;  // the call whose frame lies here; written last
  std::uint64_t gist;                 // of the header: the same where headers differ in rows at most; 0: of no other
  std::int64_t rows;                  // of the first tensor
  std::uint64_t unused_segments;      // one bit a segment: this rank neither holds nor fills it
  habits::ways past_caches;           // rank 0's alone count
  std::uint32_t payload_bytes;
  std::uint16_t head_bytes;
  std::uint16_t payload_at;  // in `bytes`
  std::int16_t core;         // where its rank ran
  // The header, the sizes given, and from the next line on the data that rides along.
  alignas(64) std::byte bytes[head_capacity + payload_capacity];
  std::uint32_t resident_pages[segment_count];  // rank 0's alone count
};

}  // namespace sheaf::shm
