// SPDX-License-Identifier: MIT
// Placing and packing by C's rules, for benchmarks/gpu/kernels.py: blocks lie one after another, in device memory.
#include <cstdint>
#include <cstdio>
#include <exception>
#include <sheaf/layout.hpp>
#include <stdexcept>
#include <vector>

#include "cuda/place.hpp"

namespace {

template <class Move>
int moved(std::int64_t outer, std::int64_t row_bytes, const std::int64_t* sizes, int world, Move&& move) try {
  const std::vector<std::int64_t> shape{outer, 0, row_bytes};
  move(sheaf::make_layout(shape, 1, {sizes, sizes + world}, 1));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

}  // namespace

extern "C" int sheaf_place(std::int64_t outer, std::int64_t row_bytes, const std::int64_t* sizes, int world,
                           const void* blocks, void* whole, void* on) {
  return moved(outer, row_bytes, sizes, world, [&](const sheaf::layout& at) {
    sheaf::cuda::place(at, blocks, whole, static_cast<sheaf::cuda::stream>(on));
  });
}

extern "C" int sheaf_pack(std::int64_t outer, std::int64_t row_bytes, const std::int64_t* sizes, int world,
                          const void* whole, void* blocks, void* on) {
  return moved(outer, row_bytes, sizes, world, [&](const sheaf::layout& at) {
    sheaf::cuda::pack(at, whole, blocks, static_cast<sheaf::cuda::stream>(on));
  });
}
