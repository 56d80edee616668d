// SPDX-License-Identifier: MIT
// The kernels. They walk the destination in aligned 16-byte vectors, so that every store is whole. Where sources are
// not aligned, a thread block first lists the pieces of its span; from then on a vector is cheap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/orders.cuh"
#include "cuda/vector.cuh"

namespace sheaf::cuda {

// Vectors a thread: loads under way, which hide memory, against registers and thread blocks to share out (measured).
constexpr int vectors = 4;
constexpr int aligned_vectors = 2;

constexpr int group_bytes = 32 * vector_bytes;
constexpr int most_bytes = threads * vectors * vector_bytes;
constexpr int aligned_bytes = threads * aligned_vectors * vector_bytes;
constexpr std::uint16_t none = 0xffff;

// The pieces of one thread block's span. `source[k] + p` is where byte p of the span comes from if it is in piece k.
struct list {
  std::uint64_t* source;
  int* start;  // in the span; 0 for one that begins before it

  struct fixed {
    std::uint16_t last[most_bytes / vector_bytes];   // a vector: the last piece that begins in it, or none
    std::uint16_t before[most_bytes / group_bytes];  // a group of 32 vectors: the last piece that begins before it
    std::int64_t first;                              // the number of the first piece
    int count;
    bool careful;  // whether a piece's aligned loads would leave its buffer
  };
  fixed& its;

  __device__ list(unsigned char* memory, int capacity, fixed& rest)
      : source(reinterpret_cast<std::uint64_t*>(memory)), start(reinterpret_cast<int*>(source + capacity)), its(rest) {}

  __device__ void clear() const {
    auto* const pairs = reinterpret_cast<std::uint32_t*>(its.last);
    for (int u = 0; u < vectors / 2; ++u) pairs[u * threads + threadIdx.x] = ~0u;
    if (threadIdx.x == 0) its.careful = false;
  }

  template <class View>
  __device__ void fill(const View& view, int capacity) const {
    if (static_cast<int>(threadIdx.x) >= capacity) return;
    const auto base = view.mine.position;
    const int span = view.mine.span;
    const auto first = view.find(max(std::int64_t{0}, base));
    if (threadIdx.x == 0) its.first = first;
    const auto most = view.pieces() - first;
    for (int k = threadIdx.x; k < most; k += threads) {
      const piece one = view[first + k];
      const auto begin = one.position - base;
      if (begin >= span) return;
      const bool is_last = k + 1 == most;
      const int from = clamp_to(begin, span);
      const int to = clamp_to(begin + one.width, span);
      const auto at = one.source - begin;
      start[k] = from;
      source[k] = at;
      if (is_last || to / vector_bytes != from / vector_bytes) its.last[from / vector_bytes] = k;
      const int groups = (is_last ? span - 1 : min(to, span - 1)) / group_bytes;
      for (int g = from / group_bytes + 1; g <= groups; ++g) its.before[g] = k;
      if (is_last || to == span) its.count = k + 1;
      const auto low = (at + from) / vector_bytes * vector_bytes;
      const auto high = (at + to + vector_bytes - 1) / vector_bytes * vector_bytes;
      if (low < one.inside.begin || high > one.inside.end) its.careful = true;
    }
  }

  // The last piece that begins in or before vector `index`; all lanes of a warp ask for neighbouring vectors.
  __device__ int of(int index) const {
    const std::uint16_t mark = its.last[index];
    const auto marked = __ballot_sync(~0u, mark != none) & (~0u >> (31 - threadIdx.x % 32));
    const int nearest = __shfl_sync(~0u, int{mark}, 31 - __clz(marked | 1));
    return marked ? nearest : its.before[index / 32];
  }
};

// Any vector, piece by piece from its last one, without a byte outside a buffer.
template <class View>
__device__ void copy_carefully(const View& view, const list& pieces, int p, int k) {
  const int from = max(0, view.mine.from - p);
  const int to = min(vector_bytes, view.mine.to - p);
  if (from >= to) return;
  uint4 value{};
  for (int upto = to; upto > from; --k) {
    const int begin = max(pieces.start[k] - p, from);
    const auto part = load(pieces.source[k] + p, view[pieces.its.first + k].inside, begin, upto);
    value = merge(join(part), value, upto);
    upto = begin;
  }
  store(view.mine.first + p, value, from, to);
}

// A vector in which piece k begins, the one before it being all the rest.
struct seam {
  loaded left, right;
  int p, k;
  bool narrow;  // it is not: there are more pieces

  __device__ seam(const list& pieces, int index, int to) : p(-1), k(index) {
    if (k >= pieces.its.count) return;
    const int begin = pieces.start[k];
    if (begin >= to || begin % vector_bytes == 0 || pieces.its.last[begin / vector_bytes] != k) return;
    p = begin / vector_bytes * vector_bytes;
    narrow = pieces.start[k - 1] > p;
    if (narrow) return;
    left = load(pieces.source[k - 1] + p, 0, begin - p);
    right = load(pieces.source[k] + p, begin - p, vector_bytes);
  }

  template <class View>
  __device__ void finish(const View& view, const list& pieces) const {
    if (p < 0) return;
    if (narrow) return copy_carefully(view, pieces, p, k);
    store(vector_at(view.mine.first + p), merge(join(left), join(right), pieces.start[k] - p));
  }
};

// A span whose vectors are all whole and whose loads stay in their buffers. Seams are few: threads share them out, so
// that the other vectors need not wait for a neighbour with two pieces.
template <class View>
__device__ void copy_shifted(const View& view, const list& pieces) {
  loaded raw[vectors];
  bool whole[vectors];
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    const int p = (u * threads + threadIdx.x) * vector_bytes;
    whole[u] = false;
    if (p >= view.mine.span) continue;
    const int k = pieces.of(p / vector_bytes);
    whole[u] = pieces.start[k] <= p && p < view.mine.to;
    if (whole[u]) raw[u] = load(pieces.source[k] + p, 0, vector_bytes);
  }
  const seam mine(pieces, threadIdx.x, view.mine.to);
#pragma unroll
  for (int u = 0; u < vectors; ++u) {
    if (whole[u]) store(vector_at(view.mine.first + (u * threads + threadIdx.x) * vector_bytes), join(raw[u]));
  }
  mine.finish(view, pieces);
  for (int k = threadIdx.x + threads; k < pieces.its.count; k += threads) {
    seam(pieces, k, view.mine.to).finish(view, pieces);
  }
}

// Where everything is made of whole vectors, looking one up is all there is to do. Counted in vectors the numbers are
// short, and a thread block has next to nothing to prepare: a few percent of the time.
template <class Table>
__global__ void __launch_bounds__(threads) place_vectors(const __grid_constant__ vector_order<Table> order) {
  __shared__ typename near<Table>::memory memory;
  const near<Table> table(order.table, memory);
  const std::uint32_t first = blockIdx.x * (threads * aligned_vectors) + threadIdx.x;
  uint4 value[aligned_vectors];
#pragma unroll
  for (int u = 0; u < aligned_vectors; ++u) {
    const std::uint32_t at = first + u * threads;
    if (at >= order.vectors) break;
    const auto [chunk, index] = order.chunk.split(at);
    const vector_block from = table[search([&](int i) { return table[i].begin; }, order.half, index)];
    value[u] = __ldg(from.packed + (std::uint64_t{chunk} * from.width + (index - from.begin)));
  }
#pragma unroll
  for (int u = 0; u < aligned_vectors; ++u) {
    const std::uint32_t at = first + u * threads;
    if (at < order.vectors) store(order.whole + at, value[u]);
  }
}

// The way back: a thread block writes for one rank, and has found out for which.
template <class Table>
__global__ void __launch_bounds__(threads) pack_vectors(const __grid_constant__ pack_order<Table> order) {
  const auto view = order.start();
  const auto first = static_cast<std::uint32_t>(view.mine.position / vector_bytes);
  uint4 value[aligned_vectors];
#pragma unroll
  for (int u = 0; u < aligned_vectors; ++u) {
    const int p = (u * threads + threadIdx.x) * vector_bytes;
    if (p < view.mine.to) value[u] = __ldg(view.source(first + p / vector_bytes));
  }
#pragma unroll
  for (int u = 0; u < aligned_vectors; ++u) {
    const int p = (u * threads + threadIdx.x) * vector_bytes;
    if (p < view.mine.to) store(vector_at(view.mine.first + p), value[u]);
  }
}

template <class Order>
__global__ void __launch_bounds__(threads, Order::resident)
    copy_bytes(const __grid_constant__ Order order, int capacity) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ list::fixed rest;
  const list pieces(memory, capacity, rest);
  const auto view = order.start();
  const auto& mine = view.mine;
  if (mine.from >= mine.to) return;
  pieces.clear();
  __syncthreads();
  pieces.fill(view, capacity);
  __syncthreads();
  if (!rest.careful && mine.from == 0 && mine.to % vector_bytes == 0) return copy_shifted(view, pieces);
  for (int p = threadIdx.x * vector_bytes; p < mine.span; p += threads * vector_bytes) {
    copy_carefully(view, pieces, p, pieces.of(p / vector_bytes));
  }
}

}  // namespace sheaf::cuda
