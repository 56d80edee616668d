// SPDX-License-Identifier: MIT
// Sums over ranks: in rank order, starting from rank 0's value, so that every engine gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.hpp"

namespace sheaf {

enum class reduction : std::uint8_t { sum, mean };

// out[i] = sources[0][i] + sources[1][i] + …, divided by the number of sources for `mean`. float16, bfloat16 and the
// float8 types accumulate in float32, are divided there and rounded once; integers wrap. `out` may be one of the
// sources, and nothing need be aligned. `streamed`: where that is_streamed(), past the caches, up to end_streams().
// bool sums and integer means are the caller's to refuse.
void sum_ranks(dtype type, reduction op, std::span<const std::byte* const> sources, std::byte* out, std::size_t bytes,
               bool streamed = false);

}  // namespace sheaf
