// SPDX-License-Identifier: MIT
#include "core/copy.hpp"

#include <algorithm>
#include <cstring>

#include "core/interval.hpp"
#include "core/parallel.hpp"

namespace sheaf {
namespace {

// `count` chunks of `bytes`, each so far from the last.
struct chunks {
  std::int64_t bytes;
  std::int64_t count;
  std::int64_t to_stride;
  std::int64_t from_stride;
  readers next = readers::near;

  std::int64_t total() const { return bytes * count; }
};

// A size known to the compiler turns each memcpy into a load and a store: it is what makes narrow columns fast.
template <std::int64_t Bytes>
void copy_fixed(std::byte* to, const std::byte* from, const chunks& all) {
  for (std::int64_t i = 0; i < all.count; ++i) std::memcpy(to + i * all.to_stride, from + i * all.from_stride, Bytes);
}

void copy(std::byte* to, const std::byte* from, std::int64_t bytes) { std::memcpy(to, from, bytes); }

void copy_here(std::byte* to, const std::byte* from, const chunks& all) {
  switch (all.bytes) {
    case 1:
      return copy_fixed<1>(to, from, all);
    case 2:
      return copy_fixed<2>(to, from, all);
    case 4:
      return copy_fixed<4>(to, from, all);
    case 8:
      return copy_fixed<8>(to, from, all);
    case 16:
      return copy_fixed<16>(to, from, all);
    case 32:
      return copy_fixed<32>(to, from, all);
    default:
      break;
  }
  const bool streamed = is_streamed(all.bytes, all.next);
  for (std::int64_t i = 0; i < all.count; ++i) {
    (streamed ? stream : copy)(to + i * all.to_stride, from + i * all.from_stride, all.bytes);
  }
  if (streamed) end_streams();
}

// Less than this a thread is not worth its waking.
constexpr std::int64_t thread_bytes = 1 << 20;

void copy_chunks(std::byte* to, const std::byte* from, chunks all) {
  if (all.total() == 0) return;  // memcpy must not see the null pointers of empty tensors
  if (all.to_stride == all.bytes && all.from_stride == all.bytes) all = {all.total(), 1, 0, 0, all.next};
  const auto most = all.total() / thread_bytes;
  const auto parts = most <= 1 ? most : std::min<std::int64_t>(thread_count(), most);
  if (parts <= 1) return copy_here(to, from, all);
  if (all.count == 1) {
    parallel(parts, [&](std::int64_t part) {
      const auto first = all.bytes * part / parts / 64 * 64;
      const auto last = part + 1 == parts ? all.bytes : all.bytes * (part + 1) / parts / 64 * 64;
      stream_or_copy(to + first, from + first, last - first, all.next);
    });
    return;
  }
  parallel(parts, [&](std::int64_t part) {
    const auto first = all.count * part / parts;
    auto mine = all;
    mine.count = all.count * (part + 1) / parts - first;
    copy_here(to + first * all.to_stride, from + first * all.from_stride, mine);
  });
}

}  // namespace

void pack(const layout& at, int rank, const std::byte* whole, std::int64_t first, std::int64_t count, std::byte* packed,
          readers next) {
  for_interval(at, rank, first, count, [&](std::int64_t from, std::int64_t to, std::int64_t bytes, std::int64_t n) {
    copy_chunks(packed + to, whole + from, {bytes, n, bytes, at.chunk_bytes(), next});
  });
}

void unpack(const layout& at, int rank, std::int64_t first, std::int64_t count, const std::byte* packed,
            std::byte* whole) {
  for_interval(at, rank, first, count, [&](std::int64_t to, std::int64_t from, std::int64_t bytes, std::int64_t n) {
    copy_chunks(whole + to, packed + from, {bytes, n, at.chunk_bytes(), bytes});
  });
}

void place(const layout& at, int rank, const std::byte* packed, std::byte* whole, readers next) {
  const auto chunk = at.block_chunk_bytes(rank);
  copy_chunks(whole + at.block_offset(rank), packed, {chunk, at.outer, at.chunk_bytes(), chunk, next});
}

void copy_block(const layout& at, int rank, const std::byte* from, std::byte* to) {
  const auto first = at.block_offset(rank);
  copy_chunks(to + first, from + first, {at.block_chunk_bytes(rank), at.outer, at.chunk_bytes(), at.chunk_bytes()});
}

}  // namespace sheaf
