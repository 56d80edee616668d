// SPDX-License-Identifier: MIT
#include "shm/arena.hpp"

#include <stdexcept>

namespace sheaf::shm {
namespace {

constexpr std::size_t page = std::size_t{2} << 20;  // a huge one: whatever the system's is, this is a multiple

constexpr std::size_t up_to_huge_page(std::size_t bytes) { return (bytes + page - 1) / page * page; }

}  // namespace

std::size_t geometry::slots_at() const { return up_to_huge_page(world * sizeof(board)); }
std::size_t geometry::staging_at() const { return slots_at() + up_to_huge_page(world * ring_slots * sizeof(slot)); }
std::size_t geometry::segments_at() const { return staging_at() + world * staging_bytes; }
std::size_t geometry::bytes() const { return segments_at() + segment_count * up_to_huge_page(segment_bytes); }

arena::arena(const descriptor& file, const geometry& shape) : shape_(shape) {
  shape_.segment_bytes = up_to_huge_page(shape.segment_bytes);
  if (file_bytes(file) != shape_.bytes()) throw std::runtime_error("the shared file has another size than was agreed");
  const auto segments = segment_count * shape_.segment_bytes;
  control_ = mapping(file, 0, shape_.segments_at(), mapping::kind::shared);
  slots_ = reinterpret_cast<slot*>(control_.data() + shape_.slots_at());
  segments_ = mapping(file, shape_.segments_at(), segments, mapping::kind::shared);
  views_ = mapping(file, shape_.segments_at(), segments, mapping::kind::copied);
  marks_ = write_marks(views_.data(), segments);
}

std::shared_ptr<arena> arena::for_threads(const geometry& shape) {
  auto made = std::make_shared<arena>(make_memory_file(shape.bytes()), shape);
  made->marks_ = {};
  made->views_ = {};
  return made;
}

std::byte* arena::staging(int rank) const {
  return control_.data() + shape_.staging_at() + rank * geometry::staging_bytes;
}

std::byte* arena::shared(int segment) const { return segments_.data() + segment * shape_.segment_bytes; }

std::byte* arena::view(int segment) const {
  return has_views() ? views_.data() + segment * shape_.segment_bytes : shared(segment);
}

}  // namespace sheaf::shm
