// SPDX-License-Identifier: MIT
#include "pattern.hpp"

#include <algorithm>
#include <atomic>

#include "core/parallel.hpp"

namespace bench {
namespace {

std::uint64_t mixed(std::uint64_t bits) {
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
  return bits ^ bits >> 31;
}

std::uint64_t key_of(int rank, std::uint64_t salt) { return mixed(salt * 1024 + static_cast<std::uint64_t>(rank)); }

constexpr std::uint64_t stride = 0x9E3779B97F4A7C15;

float term(std::uint32_t key, std::int64_t index) {
  return static_cast<float>(static_cast<std::int32_t>((static_cast<std::uint32_t>(index) * 2654435761U + key) >> 20));
}

std::atomic<std::uint64_t> seen;  // so that no compiler leaves out a read

}  // namespace

void fill_block(std::span<std::byte> block, int rank, std::uint64_t salt) {
  const auto key = key_of(rank, salt);
  auto* words = reinterpret_cast<std::uint64_t*>(block.data());
  for (std::size_t i = 0; i < block.size() / 8; ++i) words[i] = key + i * stride;
}

std::int64_t wrong_words(std::span<const std::byte> block, int rank, std::uint64_t salt) {
  const auto key = key_of(rank, salt);
  const auto* words = reinterpret_cast<const std::uint64_t*>(block.data());
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < block.size() / 8; ++i) wrong += words[i] != key + i * stride;
  return wrong;
}

void fill_terms(std::span<float> whole, int rank, std::uint64_t salt) {
  const auto key = static_cast<std::uint32_t>(key_of(rank, salt));
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = term(key, static_cast<std::int64_t>(i));
}

std::int64_t wrong_sums(std::span<const float> part, std::int64_t first, int world, std::uint64_t salt) {
  constexpr std::int64_t piece = 1024;
  std::int64_t wrong = 0;
  for (std::int64_t begin = 0; begin < std::ssize(part); begin += piece) {
    const auto count = std::min<std::int64_t>(piece, std::ssize(part) - begin);
    float sums[piece] = {};
    for (int rank = 0; rank < world; ++rank) {
      const auto key = static_cast<std::uint32_t>(key_of(rank, salt));
      for (std::int64_t i = 0; i < count; ++i) sums[i] += term(key, first + begin + i);
    }
    for (std::int64_t i = 0; i < count; ++i) wrong += part[begin + i] != sums[i];
  }
  return wrong;
}

void read_all(std::span<const std::byte> bytes) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  const auto count = std::ssize(bytes) / 8;
  const auto parts = std::clamp<std::int64_t>(std::ssize(bytes) >> 20, 1, sheaf::thread_count());
  sheaf::parallel(parts, [&](std::int64_t part) {
    std::uint64_t sum = 0;
    for (auto i = count * part / parts; i < count * (part + 1) / parts; ++i) sum += words[i];
    seen.fetch_add(sum, std::memory_order_relaxed);
  });
}

}  // namespace bench
