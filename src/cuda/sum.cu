// SPDX-License-Identifier: MIT
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "core/narrow_float.hpp"
#include "cuda/blocks.cuh"
#include "cuda/sum.hpp"

namespace sheaf::cuda {
namespace {

constexpr int threads_a_block = 256;
constexpr std::int64_t most_blocks = 132 * 16;  // each takes several turns where there is more

// Types that are summed as they are; integers as unsigned, so that they wrap.
template <class T>
struct plain {
  using stored = T;
  using wide = T;
  __device__ static wide widen(stored value) { return value; }
  __device__ static stored narrow(wide value) { return value; }
};

// What one thread reads of one rank at a time: 16 bytes where everything is aligned to them, else one element.
template <class T, int Count>
struct alignas(Count * sizeof(T)) pack {
  T values[Count];
};

template <class Type, int Count>
__global__ void sum_kernel(const typename Type::stored* sources, std::int64_t stride, typename Type::stored* out,
                           std::int64_t elements, int ranks, bool divides) {
  using stored = typename Type::stored;
  using wide = typename Type::wide;
  using group = pack<stored, Count>;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x * Count;
  for (auto i = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * Count; i < elements; i += step) {
    wide total[Count];
    for (int rank = 0; rank < ranks; ++rank) {
      const auto read = *reinterpret_cast<const group*>(sources + rank * stride + i);
#pragma unroll
      for (int k = 0; k < Count; ++k) {
        const auto value = Type::widen(read.values[k]);
        total[k] = rank == 0 ? value : static_cast<wide>(total[k] + value);
      }
    }
    group written;
#pragma unroll
    for (int k = 0; k < Count; ++k) {
      if (divides) total[k] = static_cast<wide>(total[k] / static_cast<wide>(ranks));
      written.values[k] = Type::narrow(total[k]);
    }
    *reinterpret_cast<group*>(out + i) = written;
  }
}

struct order {
  reduction op;
  int ranks;
  const void* sources;
  std::int64_t stride;
  void* out;
  std::size_t bytes;
  cudaStream_t on;
};

template <class Type, int Count>
void launch(const order& what) {
  using stored = typename Type::stored;
  const auto elements = static_cast<std::int64_t>(what.bytes / sizeof(stored));
  const auto blocks = std::min(most_blocks, (elements / Count + threads_a_block - 1) / threads_a_block);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::max<std::int64_t>(blocks, 1)));
  config.blockDim = dim3(threads_a_block);
  config.stream = what.on;
  check(cudaLaunchKernelEx(&config, sum_kernel<Type, Count>, static_cast<const stored*>(what.sources),
                           static_cast<std::int64_t>(what.stride / sizeof(stored)), static_cast<stored*>(what.out),
                           elements, what.ranks, what.op == reduction::mean),
        "launch");
}

template <class Type>
void sum_as(const order& what) {
  constexpr int vector = 16 / sizeof(typename Type::stored);
  const auto bits = reinterpret_cast<std::uintptr_t>(what.sources) | reinterpret_cast<std::uintptr_t>(what.out) |
                    static_cast<std::uintptr_t>(what.bytes) | static_cast<std::uintptr_t>(what.stride);
  if (bits % 16 == 0) return launch<Type, vector>(what);
  launch<Type, 1>(what);
}

}  // namespace

void sum(dtype type, reduction op, int ranks, const void* sources, std::int64_t stride, void* out, std::size_t bytes,
         CUstream_st* on) {
  if (ranks < 1 || type == dtype::boolean || (op == reduction::mean && is_integral(type))) {
    throw std::logic_error("sum: no sources, bool, or the mean of integers");
  }
  if (bytes == 0) return;
  const order what{op, ranks, sources, stride, out, bytes, on};
  switch (type) {
    case dtype::boolean:
      return;
    case dtype::int8:
    case dtype::uint8:
      return sum_as<plain<std::uint8_t>>(what);
    case dtype::int16:
    case dtype::uint16:
      return sum_as<plain<std::uint16_t>>(what);
    case dtype::int32:
    case dtype::uint32:
      return sum_as<plain<std::uint32_t>>(what);
    case dtype::int64:
    case dtype::uint64:
      return sum_as<plain<std::uint64_t>>(what);
    // A complex number is a pair of reals, and sums and real quotients go by part.
    case dtype::float16:
    case dtype::complex32:
      return sum_as<float16>(what);
    case dtype::bfloat16:
      return sum_as<bfloat16>(what);
    case dtype::float32:
    case dtype::complex64:
      return sum_as<plain<float>>(what);
    case dtype::float64:
    case dtype::complex128:
      return sum_as<plain<double>>(what);
    case dtype::float8_e4m3fn:
      return sum_as<float8_e4m3fn>(what);
    case dtype::float8_e4m3fnuz:
      return sum_as<float8_e4m3fnuz>(what);
    case dtype::float8_e5m2:
      return sum_as<float8_e5m2>(what);
    case dtype::float8_e5m2fnuz:
      return sum_as<float8_e5m2fnuz>(what);
    case dtype::float8_e8m0fnu:
      return sum_as<float8_e8m0fnu>(what);
  }
}

}  // namespace sheaf::cuda
