// SPDX-License-Identifier: MIT
// In which order the destination is written, and where its bytes come from: the two directions of a copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/blocks.cuh"
#include "cuda/vector.cuh"

namespace sheaf::cuda {

constexpr int threads = 128;

// Bytes that lie together in a source and in the destination. Both are counted from where the destination's first
// byte is; pieces have numbers in that order.
struct piece {
  std::int64_t position;
  std::int64_t width;
  std::uintptr_t source;
  buffer inside;
};

// What one thread block writes: bytes [from, to) of its span. `position` is the span's own, from -15 on.
struct share {
  std::byte* first;
  std::int64_t position;
  int span;
  int from;
  int to;
};

__device__ inline std::byte* align_down(std::byte* at) {
  return at - reinterpret_cast<std::uintptr_t>(at) % vector_bytes;
}
__device__ inline std::uintptr_t number(const std::byte* at) { return reinterpret_cast<std::uintptr_t>(at); }
__device__ inline int clamp_to(std::int64_t value, int limit) {
  return static_cast<int>(max(std::int64_t{0}, min(value, std::int64_t{limit})));
}

// Packed blocks to the gathered tensor, in the tensor's order: neighbouring pieces belong to different ranks.
template <class Table>
struct place_order {
  std::byte* whole;
  std::int64_t outer;
  divisor<std::int64_t> chunk;
  divisor<std::int64_t> count;
  int span;
  int half;  // of the table's length
  Table table;

  static constexpr int resident = 0;  // thread blocks at least on a multiprocessor; 0: as the compiler likes
  struct view {
    const place_order& order;
    share mine;

    __device__ std::int64_t pieces() const { return order.outer * order.count.value; }
    __device__ std::int64_t find(std::int64_t position) const {
      const auto [chunk, byte] = order.chunk.split(position);
      return chunk * order.count.value + search([&](int i) { return order.table[i].begin; }, order.half, byte);
    }
    __device__ piece operator[](std::int64_t index) const {
      const auto [chunk, rank] = order.count.split(index);
      const block& one = order.table[static_cast<int>(rank)];
      const auto width = one.width.value;
      const auto source = number(one.packed);
      return {
          chunk * order.chunk.value + one.begin, width, source + chunk * width, {source, source + order.outer * width}};
    }
  };

  __device__ view start() const {
    std::byte* const first = align_down(whole) + std::int64_t{blockIdx.x} * span;
    const std::int64_t position = first - whole;
    return {*this, {first, position, span, clamp_to(-position, span), clamp_to(outer * chunk.value - position, span)}};
  }
};

// The same where everything is made of whole vectors: none needs to be put together.
template <class Table>
struct vector_order {
  uint4* whole;
  std::uint32_t vectors;
  divisor<std::uint32_t> chunk;
  int half;
  Table table;
};

// A table where lanes can look up different ranks at once, which constant memory would serve one by one.
template <class Table>
struct near;

template <int length>
struct near<few<vector_block, length>> {
  struct memory {
    vector_block blocks[length + 1];
  };
  const memory& copy;

  __device__ near(const few<vector_block, length>& from, memory& to) : copy(to) {
    for (int i = threadIdx.x; i <= length; i += threads) to.blocks[i] = from[i];
    __syncthreads();
  }
  __device__ const vector_block& operator[](int i) const { return copy.blocks[i]; }
};

template <>
struct near<many<vector_block>> {
  struct memory {};
  many<vector_block> table;

  __device__ near(const many<vector_block>& from, memory&) : table(from) {}
  __device__ const vector_block& operator[](int i) const { return table[i]; }
};

// The gathered tensor to packed blocks. Tiles of a few chunks, and in each one block after another: the ends of
// neighbouring blocks share cache lines, which are still cached when the neighbour's turn comes.
template <class Table>
struct pack_order {
  const std::byte* whole;
  std::int64_t outer;
  std::int64_t chunk_bytes;
  std::int64_t tile;  // chunks
  std::uint32_t spans;
  int half;
  Table table;

  static constexpr int resident = 8;
  struct view {
    const pack_order& order;
    divisor<std::int64_t> width;
    divisor<std::uint32_t> wide;
    std::uintptr_t first_source;
    share mine;

    __device__ std::int64_t pieces() const { return order.outer; }
    __device__ std::int64_t find(std::int64_t position) const { return width.split(position).quotient; }
    __device__ piece operator[](std::int64_t index) const {
      const auto begin = number(order.whole);
      return {index * width.value,
              width.value,
              first_source + index * order.chunk_bytes,
              {begin, begin + order.outer * order.chunk_bytes}};
    }
    __device__ const uint4* source(std::uint32_t vector) const {
      const auto [chunk, index] = wide.split(vector);
      return reinterpret_cast<const uint4*>(first_source + chunk * order.chunk_bytes) + index;
    }
  };

  // Tiles meet where the destination is aligned, so that only a block's own ends are not whole vectors.
  __device__ view start() const {
    const std::int64_t first_chunk = blockIdx.x / spans * tile;
    const std::int64_t index = blockIdx.x % spans;
    const block& one = table[search([&](int i) { return table[i].first_span; }, half, index)];
    const auto width = one.width.value;
    const bool last = first_chunk + tile >= outer;
    std::byte* const end = last ? one.packed + outer * width : align_down(one.packed + (first_chunk + tile) * width);
    std::byte* const first = align_down(one.packed + first_chunk * width) + (index - one.first_span) * one.span;
    const std::int64_t position = first - one.packed;
    return {*this,
            one.width,
            one.wide,
            number(whole) + one.begin,
            {first, position, one.span, clamp_to(-position, one.span), clamp_to(end - first, one.span)}};
  }
};

}  // namespace sheaf::cuda
