// SPDX-License-Identifier: MIT
// 16 bytes from any address: two aligned loads, joined by shifts. No byte outside a buffer is touched, not even one
// that shares an aligned vector with the buffer's own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sheaf::cuda {

constexpr int vector_bytes = 16;

struct buffer {
  std::uintptr_t begin;
  std::uintptr_t end;
};

// A 128-bit shift to the right by one byte, `byte` coming in at the top.
__device__ inline uint4 push(uint4 v, std::uint32_t byte) {
  return {__funnelshift_r(v.x, v.y, 8), __funnelshift_r(v.y, v.z, 8), __funnelshift_r(v.z, v.w, 8),
          __funnelshift_r(v.w, byte, 8)};
}

// The aligned vector at `at`; bytes outside `inside` come as zero.
__device__ inline uint4 load_aligned(std::uintptr_t at, const buffer& inside) {
  if (at >= inside.begin && at + vector_bytes <= inside.end) return __ldg(reinterpret_cast<const uint4*>(at));
  uint4 v{};
#pragma unroll 1
  for (int i = 0; i < vector_bytes; ++i) {
    const bool ours = at + i >= inside.begin && at + i < inside.end;
    v = push(v, ours ? *reinterpret_cast<const std::uint8_t*>(at + i) : 0);
  }
  return v;
}

// What two aligned loads brought for the 16 bytes that begin `shift` bytes into `low`.
struct loaded {
  uint4 low;
  uint4 high;
  std::uint32_t shift;
};

// For bytes [from, to) of a vector, byte 0 of which would lie at `source`; loads nothing that they do not need.
__device__ inline loaded load(std::uintptr_t source, const buffer& inside, int from, int to) {
  loaded raw{{}, {}, static_cast<std::uint32_t>(source) % vector_bytes};
  const std::uintptr_t first = source - raw.shift;
  const int in_low = vector_bytes - static_cast<int>(raw.shift);
  if (from < in_low) raw.low = load_aligned(first, inside);
  if (to > in_low) raw.high = load_aligned(first + vector_bytes, inside);
  return raw;
}

// The same, where the aligned vectors are known to lie in the buffer. `source` is where byte 0 would be.
__device__ inline loaded load(std::uintptr_t source, int from, int to) {
  loaded raw{{}, {}, static_cast<std::uint32_t>(source) % vector_bytes};
  const auto* const first = reinterpret_cast<const uint4*>(source - raw.shift);
  const int in_low = vector_bytes - static_cast<int>(raw.shift);
  if (from < in_low) raw.low = __ldg(first);
  if (to > in_low) raw.high = __ldg(first + 1);
  return raw;
}

__device__ inline uint4 join(const loaded& raw) {
  const auto& [a, b, shift] = raw;
  const bool two = shift & 8;  // words to skip, as selects: an array indexed at run time would live in memory
  const std::uint32_t w0 = two ? a.z : a.x, w1 = two ? a.w : a.y, w2 = two ? b.x : a.z, w3 = two ? b.y : a.w,
                      w4 = two ? b.z : b.x, w5 = two ? b.w : b.y;
  const bool one = shift & 4;
  const std::uint32_t v0 = one ? w1 : w0, v1 = one ? w2 : w1, v2 = one ? w3 : w2, v3 = one ? w4 : w3,
                      v4 = one ? w5 : w4;
  const std::uint32_t bits = shift % 4 * 8;
  return {__funnelshift_r(v0, v1, bits), __funnelshift_r(v1, v2, bits), __funnelshift_r(v2, v3, bits),
          __funnelshift_r(v3, v4, bits)};
}

// The first `count` bytes of word `index` of a, the others of b.
__device__ inline std::uint32_t merge_word(std::uint32_t a, std::uint32_t b, int index, int count) {
  const std::uint32_t mine = __funnelshift_lc(~0u, 0u, max(0, count - 4 * index) * 8);
  return (a & mine) | (b & ~mine);
}

// The first `count` bytes of a, the others of b.
__device__ inline uint4 merge(uint4 a, uint4 b, int count) {
  return {merge_word(a.x, b.x, 0, count), merge_word(a.y, b.y, 1, count), merge_word(a.z, b.z, 2, count),
          merge_word(a.w, b.w, 3, count)};
}

// The result is not read again here, so it need not stay cached.
__device__ inline void store(uint4* at, uint4 v) { __stcs(at, v); }
__device__ inline uint4* vector_at(std::byte* at) { return reinterpret_cast<uint4*>(at); }

// Bytes [from, to) of v to the aligned vector at `at`.
__device__ inline void store(std::byte* at, uint4 v, int from, int to) {
  if (from == 0 && to == vector_bytes) return store(vector_at(at), v);
#pragma unroll 1
  for (int i = 0; i < to; ++i) {
    if (i >= from) at[i] = static_cast<std::byte>(v.x);
    v = push(v, 0);
  }
}

}  // namespace sheaf::cuda
