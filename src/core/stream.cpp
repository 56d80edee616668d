// SPDX-License-Identifier: MIT
#include "core/stream.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sheaf {
namespace {

// Below, what was written is better left in the cache for whoever reads it next.
constexpr std::int64_t worth_streaming = std::int64_t{8} << 20;

#if defined(__x86_64__)
[[gnu::target("avx2")]] void stream_avx2(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const auto head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & 63);
  std::memcpy(to, from, head);
  std::int64_t i = head;
  for (; i + 128 <= bytes; i += 128) {
    const auto a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const auto b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    const auto c = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 64));
    const auto d = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 96));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), b);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 64), c);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 96), d);
  }
  _mm_sfence();  // such stores pass by the release that tells others of them
  std::memcpy(to + i, from + i, bytes - i);
}
#endif

}  // namespace

void stream_or_copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2 && bytes >= worth_streaming) return stream_avx2(to, from, bytes);
#endif
  std::memcpy(to, from, bytes);
}

}  // namespace sheaf
