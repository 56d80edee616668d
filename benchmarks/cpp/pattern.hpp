// SPDX-License-Identifier: MIT
// What the tensors hold: other values on every rank and in every call, so that neither a stale nor a misplaced result
// can pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bench {

// The block of `rank` in call `salt`, as words of 8 bytes, and how many of them are wrong.
void fill_block(std::span<std::byte> block, int rank, std::uint64_t salt);
std::int64_t wrong_words(std::span<const std::byte> block, int rank, std::uint64_t salt);

// The whole tensor that `rank` brings to a sum, and how many sums over `world` ranks are wrong in a part of it that
// begins at element `first`. Values are whole and small: float32 holds every sum exactly, in whatever order.
void fill_terms(std::span<float> whole, int rank, std::uint64_t salt);
std::int64_t wrong_sums(std::span<const float> part, std::int64_t first, int world, std::uint64_t salt);

// One full read, on the rank's threads: the sum of all words.
void read_all(std::span<const std::byte> bytes);

}  // namespace bench
