// SPDX-License-Identifier: MIT
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/blocks.cuh"
#include "cuda/copy.cuh"
#include "cuda/orders.cuh"
#include "cuda/place.hpp"

namespace sheaf::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// For what is aligned; it is not looked at for anything else.
divisor<std::uint32_t> in_vectors(std::int64_t bytes) {
  constexpr auto most = std::int64_t{std::numeric_limits<std::uint32_t>::max()};
  return divisor(static_cast<std::uint32_t>(std::clamp(bytes / vector_bytes, std::int64_t{1}, most)));
}

// The blocks that hold anything, without the table's padding.
template <class Pointers>
std::vector<block> full_blocks(const layout& at, const Pointers& pointer) {
  std::vector<block> full;
  for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) {
    if (at.sizes[rank] == 0) continue;
    auto* const packed = const_cast<std::byte*>(static_cast<const std::byte*>(pointer(rank)));
    const auto width = at.block_chunk_bytes(rank);
    full.push_back({at.block_offset(rank), packed, divisor(width), in_vectors(width)});
  }
  return full;
}

// Whether everything is made of whole vectors, no more than can be counted in 32 bits.
bool all_aligned(const layout& at, const void* whole, std::span<const block> blocks) {
  if (at.bytes() / vector_bytes > std::numeric_limits<std::uint32_t>::max()) return false;
  auto bits = reinterpret_cast<std::uintptr_t>(whole) | static_cast<std::uintptr_t>(at.chunk_bytes());
  for (const auto& one : blocks) bits |= reinterpret_cast<std::uintptr_t>(one.packed) | one.begin;
  return bits % vector_bytes == 0;
}

// How much of the destination a thread block writes, so that no span has too many pieces for the list. `pieces` says
// how many at most, seen from their widths; none is shorter than a byte.
template <class Pieces>
int span_for(Pieces&& pieces, int& capacity) {
  constexpr std::int64_t enough = 256;
  int span = most_bytes;
  const auto most = [&] { return std::min<std::int64_t>(pieces(span), span) + 1; };
  while (span > group_bytes && most() > enough) span /= 2;
  capacity = std::max(capacity, static_cast<int>(most()));
  return span;
}

template <class Order>
void launch(const Order& order, std::int64_t grid, int capacity, bool aligned, cudaStream_t on) {
  if (grid > std::numeric_limits<std::int32_t>::max()) throw std::runtime_error("too many bytes for one launch");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(threads);
  config.stream = on;
  if (aligned) return check(cudaLaunchKernelEx(&config, copy_vectors<Order>, order), "launch");
  config.dynamicSmemBytes = capacity * (sizeof(std::uint64_t) + sizeof(int));
  check(cudaLaunchKernelEx(&config, copy_bytes<Order>, order, capacity), "launch");
}

// Pads `blocks`, hands them to `go` as a table of the right kind, with half its length.
template <class Go>
void with_table(std::vector<block>& blocks, const block& end, cudaStream_t on, Go&& go) {
  const auto length = std::bit_ceil(blocks.size());
  blocks.resize(length + 1, end);
  const int half = static_cast<int>(length / 2);
  if (length <= 16) return go(few<16>(blocks), half);
  if (length <= 64) return go(few<64>(blocks), half);
  device_blocks table(blocks.size(), on);
  table.write(blocks);
  go(table.table(), half);
}

void place_blocks(const layout& at, std::vector<block>& blocks, std::byte* whole, cudaStream_t on) {
  const bool aligned = all_aligned(at, whole, blocks);
  const auto count = static_cast<std::int64_t>(blocks.size());
  int capacity = 0;
  const auto pieces = [&](std::int64_t bytes) { return (bytes / at.chunk_bytes() + 2) * count; };
  const int span = aligned ? aligned_bytes : span_for(pieces, capacity);
  const auto lead = reinterpret_cast<std::uintptr_t>(whole) % vector_bytes;
  with_table(blocks, {at.chunk_bytes()}, on, [&]<class Table>(const Table& table, int half) {
    const place_order<Table> order{
        whole, at.outer, divisor(at.chunk_bytes()), in_vectors(at.chunk_bytes()), divisor(count), span, half, table};
    launch(order, ceil_div(at.bytes() + lead, span), capacity, aligned, on);
  });
}

void pack_blocks(const layout& at, std::vector<block>& blocks, const std::byte* whole, cudaStream_t on) {
  const bool aligned = all_aligned(at, whole, blocks);
  // Large enough for each block to fill some thread blocks, small enough for the cache.
  const auto tile_bytes = std::max(std::int64_t{2} << 20, static_cast<std::int64_t>(blocks.size()) * 4 * most_bytes);
  const auto tile = std::clamp(tile_bytes / at.chunk_bytes(), std::int64_t{1}, at.outer);
  int capacity = 0;
  std::int64_t spans = 0;
  for (auto& one : blocks) {
    const auto width = one.width.value;
    const auto pieces = [&](std::int64_t bytes) { return bytes / width + 2; };
    one.span = aligned ? aligned_bytes : span_for(pieces, capacity);
    one.first_span = spans;
    spans += ceil_div(tile * width + vector_bytes - 1, one.span);  // it may begin anywhere in a vector
  }
  block end{at.chunk_bytes()};
  end.first_span = spans;
  with_table(blocks, end, on, [&]<class Table>(const Table& table, int half) {
    const pack_order<Table> order{whole, at.outer, at.chunk_bytes(), tile, static_cast<std::uint32_t>(spans),
                                  half,  table};
    launch(order, ceil_div(at.outer, tile) * spans, capacity, aligned, on);
  });
}

void check_count(const layout& at, std::size_t count) {
  if (count == at.sizes.size()) return;
  throw std::invalid_argument("blocks: expected " + std::to_string(at.sizes.size()) + ", one a rank, got " +
                              std::to_string(count));
}

template <class Pointers>
void place_any(const layout& at, void* whole, cudaStream_t on, const Pointers& pointer) {
  if (at.bytes() == 0) return;
  auto blocks = full_blocks(at, pointer);
  place_blocks(at, blocks, static_cast<std::byte*>(whole), on);
}

template <class Pointers>
void pack_any(const layout& at, const void* whole, cudaStream_t on, const Pointers& pointer) {
  if (at.bytes() == 0) return;
  auto blocks = full_blocks(at, pointer);
  pack_blocks(at, blocks, static_cast<const std::byte*>(whole), on);
}

// Where block `rank` begins when all lie one after another.
const std::byte* one_after_another(const layout& at, const void* blocks, int rank) {
  return static_cast<const std::byte*>(blocks) + at.outer * at.block_offset(rank);
}

}  // namespace

void place(const layout& at, std::span<const void* const> blocks, void* whole, stream on) {
  check_count(at, blocks.size());
  place_any(at, whole, on, [&](int rank) { return blocks[rank]; });
}

void place(const layout& at, const void* blocks, void* whole, stream on) {
  place_any(at, whole, on, [&](int rank) { return one_after_another(at, blocks, rank); });
}

void pack(const layout& at, const void* whole, std::span<void* const> blocks, stream on) {
  check_count(at, blocks.size());
  pack_any(at, whole, on, [&](int rank) { return blocks[rank]; });
}

void pack(const layout& at, const void* whole, void* blocks, stream on) {
  pack_any(at, whole, on, [&](int rank) { return one_after_another(at, blocks, rank); });
}

}  // namespace sheaf::cuda
