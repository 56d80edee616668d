// SPDX-License-Identifier: MIT
// Sums over ranks in device memory: the same order, the same rounding and so the same bits as on the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "core/sum.hpp"

struct CUstream_st;

namespace sheaf::cuda {

// out[i] = the sum over `ranks` of sources[rank * stride + i], as sum_ranks defines it. `stride` is in bytes, a
// multiple of an element's size. The device of `on` is the current one. Throws std::runtime_error with CUDA's words.
void sum(dtype type, reduction op, int ranks, const void* sources, std::int64_t stride, void* out, std::size_t bytes,
         CUstream_st* on);

}  // namespace sheaf::cuda
