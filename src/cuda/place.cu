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

// The blocks that hold anything, without the table's padding.
template <class Pointers>
std::vector<block> full_blocks(const layout& at, const Pointers& pointer) {
  std::vector<block> full;
  for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) {
    if (at.sizes[rank] == 0) continue;
    auto* const packed = const_cast<std::byte*>(static_cast<const std::byte*>(pointer(rank)));
    full.push_back({at.block_offset(rank), packed, divisor(at.block_chunk_bytes(rank))});
  }
  return full;
}

// Whether everything is made of whole vectors, few enough to be counted in 32 bits.
bool all_aligned(const layout& at, const void* whole, std::span<const block> blocks) {
  if (at.bytes() / vector_bytes > std::numeric_limits<std::int32_t>::max()) return false;
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

template <class Kernel, class... Arguments>
void launch(Kernel* kernel, std::int64_t grid, int shared, cudaStream_t on, const Arguments&... arguments) {
  if (grid > std::numeric_limits<std::int32_t>::max()) throw std::runtime_error("too many bytes for one launch");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = on;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "launch");
}

template <class Order>
void launch_bytes(const Order& order, std::int64_t grid, int capacity, cudaStream_t on) {
  const int shared = capacity * static_cast<int>(sizeof(std::uint64_t) + sizeof(int));
  launch(copy_bytes<Order>, grid, shared, on, order, capacity);
}

// Pads `blocks`, hands them to `go` as a table of the right kind, with half its length.
template <class Entry, class Go>
void with_table(std::vector<Entry>& blocks, const Entry& end, cudaStream_t on, Go&& go) {
  const auto length = std::bit_ceil(blocks.size());
  blocks.resize(length + 1, end);
  const int half = static_cast<int>(length / 2);
  if (length <= 16) return go(few<Entry, 16>(blocks), half);
  if (length <= 64) return go(few<Entry, 64>(blocks), half);
  const device_table<Entry> table(blocks, on);
  go(table.entries(), half);
}

std::uint32_t in_vectors(std::int64_t bytes) { return static_cast<std::uint32_t>(bytes / vector_bytes); }

void place_whole_vectors(const layout& at, std::span<const block> blocks, std::byte* whole, cudaStream_t on) {
  std::vector<vector_block> all;
  for (const auto& one : blocks) {
    all.push_back({in_vectors(one.begin), in_vectors(one.width.value), reinterpret_cast<uint4*>(one.packed)});
  }
  const auto chunk = in_vectors(at.chunk_bytes());
  with_table(all, {chunk, 0, nullptr}, on, [&]<class Table>(const Table& table, int half) {
    const auto vectors = in_vectors(at.bytes());
    const vector_order<Table> order{reinterpret_cast<uint4*>(whole), vectors, divisor(chunk), half, table};
    launch(place_vectors<Table>, ceil_div(vectors, threads * aligned_vectors), 0, on, order);
  });
}

void place_blocks(const layout& at, std::vector<block>& blocks, std::byte* whole, cudaStream_t on) {
  if (all_aligned(at, whole, blocks)) return place_whole_vectors(at, blocks, whole, on);
  const auto count = static_cast<std::int64_t>(blocks.size());
  int capacity = 0;
  const auto pieces = [&](std::int64_t bytes) { return (bytes / at.chunk_bytes() + 2) * count; };
  const int span = span_for(pieces, capacity);
  const auto lead = reinterpret_cast<std::uintptr_t>(whole) % vector_bytes;
  with_table(blocks, {at.chunk_bytes()}, on, [&]<class Table>(const Table& table, int half) {
    const place_order<Table> order{whole, at.outer, divisor(at.chunk_bytes()), divisor(count), span, half, table};
    launch_bytes(order, ceil_div(at.bytes() + lead, span), capacity, on);
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
    if (aligned) one.wide = divisor(in_vectors(width));
    one.first_span = spans;
    spans += ceil_div(tile * width + vector_bytes - 1, one.span);  // it may begin anywhere in a vector
  }
  block end{at.chunk_bytes()};
  end.first_span = spans;
  with_table(blocks, end, on, [&]<class Table>(const Table& table, int half) {
    const pack_order<Table> order{whole, at.outer, at.chunk_bytes(), tile, static_cast<std::uint32_t>(spans),
                                  half,  table};
    const auto grid = ceil_div(at.outer, tile) * spans;
    if (aligned) return launch(pack_vectors<Table>, grid, 0, on, order);
    launch_bytes(order, grid, capacity, on);
  });
}

void check_count(const layout& at, std::size_t count) {
  if (count == at.sizes.size()) return;
  throw std::invalid_argument("blocks: expected " + std::to_string(at.sizes.size()) + ", one per rank, got " +
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
