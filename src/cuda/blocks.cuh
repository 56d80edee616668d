// SPDX-License-Identifier: MIT
// The table of blocks that a kernel looks things up in: by value for few ranks, in device memory for many.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace sheaf::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

__device__ inline std::uint32_t high_half(std::uint32_t a, std::uint32_t b) { return __umulhi(a, b); }
__device__ inline std::uint64_t high_half(std::uint64_t a, std::uint64_t b) { return __umul64hi(a, b); }

// Division without dividing. With inverse = floor((2^bits - 1) / value) the estimate is at most one too small.
template <class Number>
struct divisor {
  using bits = std::make_unsigned_t<Number>;
  Number value = 1;
  bits inverse = ~bits{0};

  divisor() = default;
  explicit divisor(Number by) : value(by), inverse(~bits{0} / static_cast<bits>(by)) {}

  struct result {
    Number quotient;
    Number rest;
  };
  __device__ result split(Number number) const {
    auto quotient = static_cast<Number>(high_half(static_cast<bits>(number), inverse));
    Number rest = number - quotient * value;
    if (rest >= value) {
      rest -= value;
      ++quotient;
    }
    return {quotient, rest};
  }
};

// One rank's block. Empty ones are left out of a table, which is sorted by `begin`.
struct block {
  std::int64_t begin = 0;       // its first byte in every chunk
  std::byte* packed = nullptr;  // the block by itself
  divisor<std::int64_t> width;  // its bytes in every chunk
  divisor<std::uint32_t> wide;  // the same in vectors, where all blocks are made of whole ones
  std::int64_t first_span = 0;  // pack: the first of its thread blocks in a tile
  int span = 0;                 // pack: the bytes that each of these writes
};

// The same where everything is made of whole vectors of 16 bytes, and counted in them.
struct alignas(16) vector_block {
  std::uint32_t begin;
  std::uint32_t width;
  uint4* packed;
};

// Entries are padded to a power of two, so that a search needs no bounds, and one more says where the last block ends.
template <class Entry, int length>
struct few {
  Entry entries[length + 1] = {};

  explicit few(std::span<const Entry> from) { std::copy(from.begin(), from.end(), entries); }
  __device__ const Entry& operator[](int i) const { return entries[i]; }
};

template <class Entry>
struct many {
  const Entry* entries;

  __device__ const Entry& operator[](int i) const { return entries[i]; }
};

// The last of 2 * half entries (one, if half is 0) whose key is at most `key`.
template <class At, class Key>
__device__ int search(At&& at, int half, Key key) {
  int found = 0;
  for (; half > 0; half /= 2) {
    if (at(found + half) <= key) found += half;
  }
  return found;
}

constexpr int entry_batch = 64;

template <class Entry>
__global__ void write_entries(const __grid_constant__ few<Entry, entry_batch> from, Entry* to, int count) {
  if (const int i = threadIdx.x; i < count) to[i] = from[i];
}

// A table in device memory for what is launched on a stream while this lives. It travels as kernel parameters: a copy
// from host memory may wait for the stream, and in a captured graph would read host memory long gone.
template <class Entry>
class device_table {
 public:
  device_table(std::span<const Entry> from, cudaStream_t on) : device_table(from.size(), on) {
    cudaLaunchConfig_t config{.gridDim = dim3(1), .blockDim = dim3(entry_batch), .stream = on_};
    for (std::size_t done = 0; done < from.size(); done += entry_batch) {
      const auto part = from.subspan(done, std::min<std::size_t>(entry_batch, from.size() - done));
      const few<Entry, entry_batch> parameters(part);
      auto* const to = static_cast<Entry*>(data_) + done;
      check(cudaLaunchKernelEx(&config, write_entries<Entry>, parameters, to, static_cast<int>(part.size())), "launch");
    }
  }
  device_table(const device_table&) = delete;
  device_table& operator=(const device_table&) = delete;
  ~device_table() { cudaFreeAsync(data_, on_); }

  many<Entry> entries() const { return {static_cast<const Entry*>(data_)}; }

 private:
  device_table(std::size_t count, cudaStream_t on) : on_(on) {
    check(cudaMallocAsync(&data_, count * sizeof(Entry), on), "cudaMallocAsync");
  }

  cudaStream_t on_;
  void* data_ = nullptr;
};

}  // namespace sheaf::cuda
