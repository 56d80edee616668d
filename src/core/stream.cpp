// SPDX-License-Identifier: MIT
#include "core/stream.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sheaf {
namespace {

// From here on no cache keeps what was written, and the lines need not be read before. Below, near readers are served
// by a cache, and far ones by memory, unless it is little.
constexpr std::int64_t worth_streaming = std::int64_t{8} << 20;
constexpr std::int64_t worth_streaming_far = std::int64_t{1} << 10;

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
  std::memcpy(to + i, from + i, bytes - i);
}
#endif

bool can_stream() {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  return avx2;
#else
  return false;
#endif
}

}  // namespace

bool is_streamed(std::int64_t bytes, readers next) {
  return bytes >= (next == readers::far ? worth_streaming_far : worth_streaming) && can_stream();
}

void stream(std::byte* to, const std::byte* from, std::int64_t bytes) {
#if defined(__x86_64__)
  stream_avx2(to, from, bytes);
#else
  std::memcpy(to, from, bytes);
#endif
}

void end_streams() {
#if defined(__x86_64__)
  _mm_sfence();  // such stores pass by the release that tells others of them
#endif
}

void stream_or_copy(std::byte* to, const std::byte* from, std::int64_t bytes, readers next) {
  if (is_streamed(bytes, next)) {
    stream(to, from, bytes);
    end_streams();
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace sheaf
