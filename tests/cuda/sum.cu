// SPDX-License-Identifier: MIT
// Sums over ranks in device memory against those on the host: the same bits.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/sum.hpp"
#include "cuda/sum.hpp"

namespace {

using bytes = std::vector<unsigned char>;
constexpr unsigned char canary = 0xa5;

void ok(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Finite values of a few sizes for the types whose sums of any bits could be NaNs of any kind; any bits for the others.
bytes random_values(sheaf::dtype type, std::size_t count, unsigned seed) {
  std::mt19937 draw(seed);
  bytes all(count * sheaf::itemsize(type));
  for (auto& one : all) one = static_cast<unsigned char>(draw());
  std::uniform_real_distribution<double> real(-1000, 1000);
  if (type == sheaf::dtype::float32 || type == sheaf::dtype::complex64) {
    auto* const to = reinterpret_cast<float*>(all.data());
    for (std::size_t i = 0; i < all.size() / sizeof(float); ++i) to[i] = static_cast<float>(real(draw));
  }
  if (type == sheaf::dtype::float64 || type == sheaf::dtype::complex128) {
    auto* const to = reinterpret_cast<double*>(all.data());
    for (std::size_t i = 0; i < all.size() / sizeof(double); ++i) to[i] = real(draw);
  }
  return all;
}

bytes on_host(sheaf::dtype type, sheaf::reduction op, int ranks, const bytes& sources) {
  bytes out(sources.size() / ranks);
  std::vector<const std::byte*> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    parts.push_back(reinterpret_cast<const std::byte*>(sources.data()) + rank * out.size());
  }
  sheaf::sum_ranks(type, op, parts, reinterpret_cast<std::byte*>(out.data()), out.size());
  return out;
}

// `shift` bytes off alignment, or with something between one rank's part and the next; a canary behind the result.
bytes on_device(sheaf::dtype type, sheaf::reduction op, int ranks, const bytes& sources, std::size_t shift) {
  const auto size = sources.size() / ranks;
  unsigned char *from = nullptr, *to = nullptr;
  const auto stride = size + (shift == 0 ? 32 : 0);
  ok(cudaMalloc(&from, ranks * stride + shift));
  ok(cudaMalloc(&to, size + shift + 16));
  ok(cudaMemcpy2D(from + shift, stride, sources.data(), size, size, ranks, cudaMemcpyHostToDevice));
  ok(cudaMemset(to, canary, size + shift + 16));
  sheaf::cuda::sum(type, op, ranks, from + shift, static_cast<std::int64_t>(stride), to + shift, size, nullptr);
  bytes out(size + 16);
  ok(cudaMemcpy(out.data(), to + shift, size + 16, cudaMemcpyDeviceToHost));
  for (std::size_t i = size; i < out.size(); ++i) EXPECT_EQ(out[i], canary) << "behind the result";
  ok(cudaFree(from));
  ok(cudaFree(to));
  out.resize(size);
  return out;
}

TEST(cuda_sum, has_the_bits_of_the_host) {
  for (int number = 0; number < sheaf::dtype_count; ++number) {
    const auto type = static_cast<sheaf::dtype>(number);
    if (type == sheaf::dtype::boolean) continue;
    for (const auto op : {sheaf::reduction::sum, sheaf::reduction::mean}) {
      if (op == sheaf::reduction::mean && sheaf::is_integral(type)) continue;
      for (const int ranks : {1, 2, 3, 8}) {
        for (const std::size_t count : {1, 7, 64, 1000, 4099}) {
          const auto sources = random_values(type, count * ranks, number * 100 + ranks);
          for (const std::size_t shift : {std::size_t{0}, static_cast<std::size_t>(sheaf::itemsize(type))}) {
            const auto got = on_device(type, op, ranks, sources, shift);
            if (ranks == 1) {  // the host copies a single source, NaNs as they are
              if (op == sheaf::reduction::sum && sheaf::is_integral(type)) EXPECT_EQ(got, sources) << sheaf::name(type);
              continue;
            }
            EXPECT_EQ(got, on_host(type, op, ranks, sources))
                << sheaf::name(type) << ", " << ranks << " ranks of " << count << ", shifted by " << shift;
          }
        }
      }
    }
  }
}

TEST(cuda_sum, takes_more_than_one_turn) {
  const std::size_t count = (std::size_t{3} << 20) + 5;
  const auto sources = random_values(sheaf::dtype::float32, 2 * count, 1);
  EXPECT_EQ(on_device(sheaf::dtype::float32, sheaf::reduction::sum, 2, sources, 0),
            on_host(sheaf::dtype::float32, sheaf::reduction::sum, 2, sources));
}

}  // namespace
