// SPDX-License-Identifier: MIT
#include "core/copy.hpp"

#include <algorithm>
#include <cstring>

namespace sheaf {
namespace {

struct strides {
  std::int64_t to;
  std::int64_t from;
};

// A size known to the compiler turns each memcpy into a load and a store: it is what makes narrow columns fast.
template <std::int64_t Chunk>
void copy_fixed(std::byte* to, const std::byte* from, strides step, std::int64_t chunks) {
  for (std::int64_t i = 0; i < chunks; ++i) std::memcpy(to + i * step.to, from + i * step.from, Chunk);
}

void copy_chunks(std::byte* to, const std::byte* from, strides step, std::int64_t chunk, std::int64_t chunks) {
  if (chunk == 0 || chunks == 0) return;  // memcpy must not see the null pointers of empty tensors
  if (step.to == chunk && step.from == chunk) {
    chunk *= chunks;
    chunks = 1;
  }
  switch (chunk) {
    case 1:
      return copy_fixed<1>(to, from, step, chunks);
    case 2:
      return copy_fixed<2>(to, from, step, chunks);
    case 4:
      return copy_fixed<4>(to, from, step, chunks);
    case 8:
      return copy_fixed<8>(to, from, step, chunks);
    case 16:
      return copy_fixed<16>(to, from, step, chunks);
    case 32:
      return copy_fixed<32>(to, from, step, chunks);
    default:
      break;
  }
  for (std::int64_t i = 0; i < chunks; ++i) std::memcpy(to + i * step.to, from + i * step.from, chunk);
}

}  // namespace

void pack(const layout& at, int rank, const std::byte* whole, std::int64_t first, std::int64_t count,
          std::byte* packed) {
  const auto chunk = at.block_chunk_bytes(rank);
  if (chunk == 0 || count == 0) return;
  const auto stride = at.chunk_bytes();
  const auto* block = whole + at.block_offset(rank) + (first / chunk) * stride;

  // The interval may begin and end within a chunk.
  const auto inside = first % chunk;
  if (inside != 0) {
    const auto head = std::min(chunk - inside, count);
    std::memcpy(packed, block + inside, head);
    packed += head;
    count -= head;
    block += stride;
  }
  const auto chunks = count / chunk;
  const auto tail = count % chunk;
  copy_chunks(packed, block, {chunk, stride}, chunk, chunks);
  if (tail != 0) std::memcpy(packed + chunks * chunk, block + chunks * stride, tail);
}

void place(const layout& at, int rank, const std::byte* packed, std::byte* whole) {
  const auto chunk = at.block_chunk_bytes(rank);
  if (chunk == 0 || at.outer == 0) return;
  copy_chunks(whole + at.block_offset(rank), packed, {at.chunk_bytes(), chunk}, chunk, at.outer);
}

}  // namespace sheaf
