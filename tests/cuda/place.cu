// SPDX-License-Identifier: MIT
// Placing and packing in device memory, against memcpy on the host. Build from the root of the project:
// nvcc -O3 -std=c++20 -arch=native -Iinclude -Isrc tests/cuda/place.cu src/cuda/place.cu src/core/layout.cpp
//   -lgtest -lgtest_main -o place_tests
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <sheaf/layout.hpp>
#include <string>
#include <vector>

#include "cuda/place.hpp"

namespace {

using bytes = std::vector<unsigned char>;
using extents = std::vector<std::int64_t>;
constexpr unsigned char canary = 0xa5;

void ok(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct freed {
  void operator()(void* at) const { cudaFree(at); }
};
using memory = std::unique_ptr<void, freed>;

memory allocate(std::size_t count) {
  void* at = nullptr;
  ok(cudaMalloc(&at, count));
  return memory(at);
}

// Device memory that ends where its content ends, so that a memory checker sees every byte read behind it.
struct exact {
  memory data;
  unsigned char* at;

  exact(const bytes& content, int shift)
      : data(allocate(content.size() + shift)), at(static_cast<unsigned char*>(data.get()) + shift) {
    ok(cudaMemcpy(at, content.data(), content.size(), cudaMemcpyHostToDevice));
  }
};

// Device memory with canaries on both sides and in it.
struct guarded {
  static constexpr std::size_t guard = 64;
  std::size_t count;
  int shift;
  memory data;

  guarded(std::size_t count, int shift) : count(count), shift(shift), data(allocate(count + shift + 2 * guard)) {
    ok(cudaMemset(data.get(), canary, count + shift + 2 * guard));
  }
  unsigned char* at() const { return static_cast<unsigned char*>(data.get()) + guard + shift; }

  void expect(const bytes& want, const std::string& what) const {
    bytes all(count + shift + 2 * guard, canary), got(all.size());
    ok(cudaMemcpy(got.data(), data.get(), got.size(), cudaMemcpyDeviceToHost));
    std::copy(want.begin(), want.end(), all.begin() + guard + shift);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (got[i] == all[i]) continue;
      const auto byte = static_cast<std::int64_t>(i) - static_cast<std::int64_t>(guard + shift);
      FAIL() << what << ": byte " << byte << " of " << count << " is " << int{got[i]} << ", not " << int{all[i]};
    }
  }
};

struct sample {
  sheaf::layout at;
  std::vector<bytes> blocks;
  bytes whole;
  bytes packed;  // the blocks one after another

  sample(sheaf::layout where, std::mt19937& random) : at(std::move(where)), whole(at.bytes()) {
    for (auto& byte : whole) byte = random();
    for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) {
      auto& block = blocks.emplace_back(at.block_bytes(rank));
      const auto width = at.block_chunk_bytes(rank);
      for (std::int64_t chunk = 0; chunk < at.outer && width > 0; ++chunk) {
        std::memcpy(&block[chunk * width], &whole[chunk * at.chunk_bytes() + at.block_offset(rank)], width);
      }
      packed.insert(packed.end(), block.begin(), block.end());
    }
  }
};

// All four functions; `shift` says how far from alignment each buffer begins.
template <class Shift>
void check(const sample& all, Shift&& shift, const std::string& what) {
  std::vector<exact> sources;
  std::vector<guarded> targets;
  std::vector<const void*> from;
  std::vector<void*> to;
  for (const auto& block : all.blocks) {
    from.push_back(sources.emplace_back(block, shift()).at);
    to.push_back(targets.emplace_back(block.size(), shift()).at());
  }
  const exact whole(all.whole, shift());
  const guarded placed(all.whole.size(), shift());
  sheaf::cuda::place(all.at, from, placed.at(), nullptr);
  placed.expect(all.whole, what + ", place blocks");
  sheaf::cuda::pack(all.at, whole.at, to, nullptr);
  for (std::size_t r = 0; r < targets.size(); ++r) {
    targets[r].expect(all.blocks[r], what + ", pack block " + std::to_string(r));
  }
  const guarded packed(all.packed.size(), shift()), again(all.whole.size(), shift());
  sheaf::cuda::pack(all.at, whole.at, packed.at(), nullptr);
  packed.expect(all.packed, what + ", pack");
  sheaf::cuda::place(all.at, static_cast<const void*>(packed.at()), again.at(), nullptr);
  again.expect(all.whole, what + ", place what was packed");
}

sheaf::layout make(std::int64_t outer, const extents& sizes, std::int64_t row_bytes) {
  return sheaf::make_layout(extents{outer, 0, row_bytes}, 1, sizes, 1);
}

std::string name(const sheaf::layout& at) {
  std::string text = std::to_string(at.outer) + " chunks, rows of " + std::to_string(at.row_bytes) + ", sizes";
  for (const auto size : at.sizes) text += " " + std::to_string(size);
  return text.substr(0, 120);
}

class Ranks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Place, Ranks, testing::Values(1, 2, 3, 8, 64, 65, 70, 200),
                         [](const auto& info) { return std::to_string(info.param); });

// Rows of 1 byte to some KiB, a third of the ranks empty.
TEST_P(Ranks, any_size_and_alignment) {
  std::mt19937 random(GetParam());
  const auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  const bool many = GetParam() > 8;
  for (const std::int64_t row_bytes : {1, 2, 3, 4, 6, 8, 12, 16, 20, 48, 66, 257, 1024, 4097}) {
    for (const std::int64_t outer : {1, 2, 7, 33, 500}) {
      if (outer * row_bytes * GetParam() > 1'000'000 || (many && below(3) > 0)) continue;
      extents sizes(GetParam());
      for (auto& size : sizes) size = below(3) == 0 ? 0 : 1 + below(row_bytes < 64 ? 40 : 4);
      const sample all(make(outer, sizes, row_bytes), random);
      check(all, [&] { return below(16); }, name(all.at) + ", shifted");
      check(all, [&] { return 0; }, name(all.at));
      if (HasFatalFailure()) return;
    }
  }
}

// Every distance between source and destination, with blocks shorter and longer than a vector.
TEST(Place, every_shift) {
  std::mt19937 random(1);
  const sample all(make(9, {37, 0, 5, 16, 1, 1, 100}, 1), random);
  for (int to = 0; to < 16; ++to) {
    for (int from = 0; from < 16; ++from) {
      const exact source(all.packed, from), whole(all.whole, from);
      const guarded placed(all.whole.size(), to), packed(all.packed.size(), to);
      sheaf::cuda::place(all.at, static_cast<const void*>(source.at), placed.at(), nullptr);
      placed.expect(all.whole, "place from " + std::to_string(from) + " to " + std::to_string(to));
      sheaf::cuda::pack(all.at, whole.at, packed.at(), nullptr);
      packed.expect(all.packed, "pack from " + std::to_string(from) + " to " + std::to_string(to));
    }
  }
}

// Chunks longer than a thread block's share and tiles that do not divide the chunks.
TEST(Place, long_chunks_and_many_tiles) {
  std::mt19937 random(2);
  for (const auto& at : {make(3, {100'001, 0, 300'000, 7}, 4), make(30'000, {50, 3, 200, 4}, 1),
                         make(20'000, {4, 1, 8, 3}, 16), make(1, {70'000, 1, 30'000}, 16)}) {
    const sample all(at, random);
    check(all, [&] { return static_cast<int>(random() % 16); }, name(at) + ", shifted");
    check(all, [&] { return 0; }, name(at));
  }
}

TEST(Place, nothing_to_move) {
  for (const auto& at : {make(0, {1, 2}, 4), make(3, {0, 0}, 4), make(3, {1, 2}, 0)}) {
    sheaf::cuda::place(at, static_cast<const void*>(nullptr), nullptr, nullptr);
    sheaf::cuda::pack(at, nullptr, static_cast<void*>(nullptr), nullptr);
    sheaf::cuda::place(at, std::vector<const void*>(2), nullptr, nullptr);
    ok(cudaDeviceSynchronize());
  }
}

TEST(Place, one_block_a_rank) {
  const auto at = make(3, {1, 2}, 4);
  EXPECT_THROW(sheaf::cuda::place(at, std::vector<const void*>(3), nullptr, nullptr), std::invalid_argument);
  EXPECT_THROW(sheaf::cuda::pack(at, nullptr, std::vector<void*>(1), nullptr), std::invalid_argument);
}

// A replay must not need the table of the captured call in host memory.
TEST(Place, captured_in_a_graph) {
  std::mt19937 random(3);
  for (const int ranks : {8, 70}) {
    const sample all(make(40, extents(ranks, 3), 6), random);
    const exact source(all.packed, 2);
    const guarded placed(all.whole.size(), 4);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    ok(cudaStreamCreate(&stream));
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    sheaf::cuda::place(all.at, static_cast<const void*>(source.at), placed.at(), stream);
    ok(cudaStreamEndCapture(stream, &graph));
    ok(cudaGraphInstantiate(&ready, graph));
    for (int replay = 0; replay < 2; ++replay) {
      ok(cudaMemset(placed.at(), 0, placed.count));
      ok(cudaDeviceSynchronize());
      ok(cudaGraphLaunch(ready, stream));
      ok(cudaStreamSynchronize(stream));
      placed.expect(all.whole, "replay " + std::to_string(replay));
    }
    ok(cudaGraphExecDestroy(ready));
    ok(cudaGraphDestroy(graph));
    ok(cudaStreamDestroy(stream));
  }
}

__device__ unsigned char pattern(std::int64_t i) {
  return static_cast<unsigned char>((static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15ull) >> 37);
}

struct two_blocks {
  std::int64_t outer, first, chunk;  // the first block is bytes [0, first) of every chunk

  __device__ std::int64_t packed(std::int64_t i) const {
    const auto c = i / chunk, b = i % chunk;
    return b < first ? c * first + b : outer * first + c * (chunk - first) + b - first;
  }
};

__global__ void write_pattern(unsigned char* to, std::int64_t count) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) to[i] = pattern(i);
}

__global__ void count_wrong(const unsigned char* got, two_blocks at, bool whole, unsigned long long* wrong) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < at.outer * at.chunk; i += step) {
    if (got[i] != pattern(whole ? at.packed(i) : i)) atomicAdd(wrong, 1ull);
  }
}

// Over 2^32 bytes in a chunk, whole vectors and not, and over 2^26 chunks: packed holds a pattern, and so must what
// comes back.
TEST(Huge, chunks_and_strides) {
  for (const two_blocks at : {two_blocks{2, 2'500'000'001, 5'000'000'019}, two_blocks{2, 2'500'000'016, 5'000'000'048},
                              two_blocks{100'000'007, 17, 51}}) {
    const auto layout = make(at.outer, {at.first, at.chunk - at.first}, 1);
    const auto packed = allocate(layout.bytes()), whole = allocate(layout.bytes()), count = allocate(8);
    const auto wrong = [&](const memory& got, bool is_whole) {
      unsigned long long result = 0;
      ok(cudaMemset(count.get(), 0, 8));
      count_wrong<<<2048, 256>>>(static_cast<unsigned char*>(got.get()), at, is_whole,
                                 static_cast<unsigned long long*>(count.get()));
      ok(cudaMemcpy(&result, count.get(), 8, cudaMemcpyDeviceToHost));
      return result;
    };
    write_pattern<<<2048, 256>>>(static_cast<unsigned char*>(packed.get()), layout.bytes());
    ok(cudaMemset(whole.get(), canary, layout.bytes()));
    sheaf::cuda::place(layout, static_cast<const void*>(packed.get()), whole.get(), nullptr);
    EXPECT_EQ(wrong(whole, true), 0);
    ok(cudaMemset(packed.get(), canary, layout.bytes()));
    sheaf::cuda::pack(layout, whole.get(), packed.get(), nullptr);
    EXPECT_EQ(wrong(packed, false), 0);
  }
}

}  // namespace
