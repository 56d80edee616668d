// SPDX-License-Identifier: MIT
// Placing and packing beside one device-to-device copy of as many bytes. Build from the root of the project:
// nvcc -O3 -std=c++20 -arch=native -Iinclude -Isrc benchmarks/cuda/place.cu src/cuda/place.cu src/core/layout.cpp
//   -o place_benchmark
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sheaf/layout.hpp>
#include <vector>

#include "cuda/place.hpp"

namespace {

void ok(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

struct scene {
  const char* name;
  std::int64_t row_bytes;
  std::vector<std::int64_t> sizes;  // eight ranks, ragged
};

// Result rows (chunks) of 1 KiB and more. "even": all offsets are multiples of 16 bytes.
const std::vector<scene> scenes = {
    {"last dim f32 1 KiB even", 4, {20, 4, 48, 12, 28, 36, 8, 100}},
    {"last dim bf16 4 KiB even", 2, {160, 32, 384, 96, 224, 288, 64, 800}},
    {"dim 1, rows of 256 B even", 256, {20, 4, 48, 12, 28, 36, 8, 100}},
    {"dim 1, rows of 4 KiB even", 4096, {20, 4, 48, 12, 28, 36, 8, 100}},
    {"last dim f32 1 KiB", 4, {21, 5, 47, 11, 29, 37, 7, 99}},
    {"last dim f32 1028 B", 4, {21, 5, 47, 11, 29, 37, 7, 100}},
    {"last dim bf16 1 KiB", 2, {41, 9, 95, 23, 57, 73, 15, 199}},
    {"last dim bf16 1026 B", 2, {41, 9, 95, 23, 57, 73, 15, 200}},
    {"last dim bf16 8 KiB", 2, {319, 65, 767, 193, 447, 577, 127, 1601}},
    {"last dim bf16 1 KiB, 1 row", 2, {1, 48, 96, 24, 57, 73, 14, 199}},
    {"dim 1, f32 rows of 132 B", 132, {21, 5, 47, 11, 29, 37, 7, 99}},
    {"dim 1, bf16 rows of 66 B", 66, {21, 5, 47, 11, 29, 37, 7, 99}},
    {"dim 1, bf16 rows of 4098 B", 4098, {20, 4, 48, 12, 28, 36, 8, 100}},
};

__global__ void scramble(std::uint32_t* to, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    to[i] = static_cast<std::uint32_t>((static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ull) >> 29);
  }
}

__global__ void compare(const unsigned char* a, const unsigned char* b, std::int64_t count, int* differ) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    if (a[i] != b[i]) *differ = 1;
  }
}

// Four buffers of each kind, taken in turns: more than any cache holds.
struct buffers {
  std::array<unsigned char*, 4> from, to;
  int* differ = nullptr;
  cudaEvent_t begin, end;

  explicit buffers(std::int64_t count) {
    for (auto* all : {&from, &to}) {
      for (auto& one : *all) {
        ok(cudaMalloc(&one, count));
        scramble<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(one), count / 4);
      }
    }
    ok(cudaMalloc(&differ, sizeof(int)));
    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
  }
  buffers(const buffers&) = delete;
  ~buffers() {
    for (auto* all : {&from, &to}) {
      for (auto* one : *all) cudaFree(one);
    }
    cudaFree(differ);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }

  float time(const std::function<void(const void*, void*)>& move) {
    ok(cudaEventRecord(begin));
    for (std::size_t i = 0; i < from.size(); ++i) move(from[i], to[i]);
    ok(cudaEventRecord(end));
    ok(cudaEventSynchronize(end));
    float ms = 0;
    ok(cudaEventElapsedTime(&ms, begin, end));
    return ms / from.size();
  }
};

double median(std::vector<float> all) {
  std::nth_element(all.begin(), all.begin() + all.size() / 2, all.end());
  return all[all.size() / 2];
}

bool survives(const sheaf::layout& at, buffers& memory) {
  int differ = 0;
  ok(cudaMemset(memory.differ, 0, sizeof(int)));
  sheaf::cuda::pack(at, memory.from[0], static_cast<void*>(memory.to[0]), nullptr);
  sheaf::cuda::place(at, static_cast<const void*>(memory.to[0]), memory.to[1], nullptr);
  compare<<<1024, 256>>>(memory.from[0], memory.to[1], at.bytes(), memory.differ);
  ok(cudaMemcpy(&differ, memory.differ, sizeof(int), cudaMemcpyDeviceToHost));
  return differ == 0;
}

void measure(const scene& one, std::int64_t mib, int samples) {
  std::int64_t rows = 0;
  for (const auto size : one.sizes) rows += size;
  const auto outer = (mib << 20) / (rows * one.row_bytes);
  const auto at = sheaf::make_layout(std::vector<std::int64_t>{outer, 0, one.row_bytes}, 1, one.sizes, 1);
  buffers memory(at.bytes() + 16);
  const bool right = survives(at, memory);
  const std::array<std::function<void(const void*, void*)>, 3> moves = {
      [&](const void* from, void* to) { sheaf::cuda::place(at, from, to, nullptr); },
      [&](const void* from, void* to) { sheaf::cuda::pack(at, from, to, nullptr); },
      [&](const void* from, void* to) { ok(cudaMemcpyAsync(to, from, at.bytes(), cudaMemcpyDeviceToDevice)); }};
  std::array<std::vector<float>, 3> times;
  for (int i = -2; i < samples; ++i) {
    for (std::size_t m = 0; m < moves.size(); ++m) {
      const float ms = memory.time(moves[m]);
      if (i >= 0) times[m].push_back(ms);
    }
  }
  std::array<double, 3> speed;
  for (std::size_t m = 0; m < moves.size(); ++m) speed[m] = 2e-6 * at.bytes() / median(times[m]);
  std::printf("%-28s %5ld %8.0f %8.0f %8.0f %7.1f%% %7.1f%%  %s\n", one.name, static_cast<long>(mib), speed[0],
              speed[1], speed[2], 100 * speed[0] / speed[2], 100 * speed[1] / speed[2], right ? "right" : "WRONG");
}

}  // namespace

// GB/s count bytes read and bytes written; medians, the three ways taking turns.
int main() {
  std::printf("%-28s %5s %8s %8s %8s %8s %8s\n", "case", "MiB", "place", "pack", "copy", "place %", "pack %");
  for (const std::int64_t mib : {64, 512}) {
    for (const auto& one : scenes) measure(one, mib, mib < 256 ? 41 : 15);
  }
  return 0;
}
