// SPDX-License-Identifier: MIT
// One rank's part in the segments of the pool: which it uses, which are warm, and when one may be used again. Which
// segment a call takes follows from all ranks' frames of that call alone, so that every rank comes to the same one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/engine.hpp"
#include "shm/arena.hpp"

namespace sheaf::shm {

// What all ranks' frames of one call say of the segments.
struct census {
  std::uint64_t unused;           // by every rank, one bit a segment
  const std::uint32_t* resident;  // pages that are in memory, by segment, as rank 0 counts
};

class pool : public std::enable_shared_from_this<pool> {
 public:
  pool(std::shared_ptr<arena> place, int rank, std::size_t limit);
  ~pool();

  // What this rank says in its frame.
  std::uint64_t unused() const { return unused_.load(std::memory_order_acquire); }
  // Rank 0: into its slot of this call.
  void write_resident(slot& to, std::uint64_t sequence);

  // The segment for `bytes`, or none where all are in use or the pool's limit is reached. It is this rank's until
  // release(), or until the last owner of its lease is gone.
  std::optional<int> choose(const census& all, std::size_t bytes);
  void release(int segment);
  // Bytes [first, first + bytes) of the segment as an ordinary result. At most one a choice.
  memory lease(int segment, std::size_t first, std::size_t bytes);

  // Before writing [first, first + bytes) of the segment, and after everybody has: pages come in one go, not by faults.
  void warm_for_writing(int segment, std::size_t first, std::size_t bytes);
  void warm_for_reading(int segment, std::size_t bytes);

  // Whether results of that size were mostly written into lately: then private memory is cheaper.
  bool prefers_private(std::size_t bytes);

  struct usage {
    int used = 0;              // segments this rank holds
    std::size_t resident = 0;  // bytes, as far as this rank knows
    std::size_t limit = 0;
  };
  usage count() const;

  // Called around fork: what is held then is held for ever, since the child goes on seeing it.
  void lock_for_fork() { mutex_.lock(); }
  void unlock_after_fork(bool in_parent);

 private:
  struct state {
    bool kept = false;             // for good: a child of fork goes on seeing it, or what was written could not go
    std::size_t bytes = 0;         // what the present use covers
    std::size_t resident = 0;      // what is in memory
    std::size_t written_warm = 0;  // [0, …) is mapped for writing, and for reading, in this process
    std::size_t read_warm = 0;
    std::uint64_t last_use = 0;
  };
  void trim(const census& all, int chosen);
  void drop(int segment, bool was_result);
  void mark(int segment, bool used);
  bool is_used(int segment) const { return !(unused() >> segment & 1); }

  const std::shared_ptr<arena> place_;
  const int rank_;
  const std::size_t limit_;
  const int process_;
  mutable std::mutex mutex_;
  std::array<state, segment_count> segments_;
  std::array<int, 64> private_for_ = {};  // by size class: results to come that are better private
  std::uint64_t uses_ = 0;
  std::atomic<std::uint64_t> unused_{~std::uint64_t{0}};   // one bit a segment
  std::array<std::uint64_t, ring_slots> written_at_ = {};  // rank 0: after how many choices a slot's count was written
};

}  // namespace sheaf::shm
