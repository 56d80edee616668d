// SPDX-License-Identifier: MIT
// The memory that the ranks of one group share: boards, slots, staging buffers and the segments of the pool, in one
// sealed file. It lives as long as the group or any result in it.
#pragma once

#include <memory>

#include "shm/board.hpp"
#include "shm/mapping.hpp"
#include "shm/written.hpp"

namespace sheaf::shm {

// Where things lie in the file; the same on every rank.
struct geometry {
  int world = 1;
  std::size_t segment_bytes = 0;

  static constexpr std::size_t staging_bytes = std::size_t{4} << 20;  // a rank
  std::size_t slots_at() const;
  std::size_t staging_at() const;
  std::size_t segments_at() const;
  std::size_t bytes() const;
};

class arena {
 public:
  // Of a file that make_memory_file() made for this geometry. Throws runtime_error when it cannot be mapped.
  arena(const descriptor& file, const geometry& shape);
  // For ranks that are threads of one process: they see one mapping, and results are not copied on write.
  static std::shared_ptr<arena> for_threads(const geometry& shape);

  const geometry& shape() const { return shape_; }
  board& of(int rank) const { return reinterpret_cast<board*>(control_.data())[rank]; }
  slot& slot_of(int rank, std::uint64_t sequence) const {
    return slots_[static_cast<std::uint64_t>(rank) * ring_slots + sequence % ring_slots];
  }
  std::byte* staging(int rank) const;
  // What all see of a segment, and what this process does: its own, copied where it writes.
  std::byte* shared(int segment) const;
  std::byte* view(int segment) const;
  bool has_views() const { return views_.data() != nullptr; }
  const write_marks& marks() const { return marks_; }

 private:
  geometry shape_;
  mapping control_;  // boards, slots, staging
  slot* slots_ = nullptr;
  mapping segments_;
  mapping views_;
  write_marks marks_;  // of the views
};

}  // namespace sheaf::shm
