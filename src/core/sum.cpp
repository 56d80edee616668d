// SPDX-License-Identifier: MIT
#include "core/sum.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "core/f16c.hpp"
#include "core/narrow_float.hpp"
#include "core/stream.hpp"

namespace sheaf {
namespace {

using pointers = std::span<const std::byte* const>;

struct task {
  reduction op;
  pointers sources;
  std::byte* out;
  bool streamed;  // past the caches
};

// Elements that stay in the first-level cache while all sources pass over them.
constexpr std::size_t tile = 1024;

// Types that are summed as they are. Integers as unsigned, so that they wrap.
template <class T>
struct plain {
  using stored = T;
  using wide = T;
  static wide widen(stored value) { return value; }
  static stored narrow(wide value) { return value; }
};

// Through memcpy nothing need be aligned; it compiles to plain loads and stores.
template <class T>
T load(const std::byte* from, std::size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, std::size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

// As many sources are read side by side: more would be more streams than processors fetch ahead.
constexpr std::size_t side_by_side = 4;

// total[i] and the elements of so many sources, in their order; `Begins`: total is not there yet.
template <class Type, std::size_t Sources, bool Begins, class Count>
[[gnu::always_inline]] inline void add_sources(typename Type::wide* total, pointers sources, std::size_t first,
                                               Count count) {
  using stored = typename Type::stored;
  const std::byte* from[Sources];
  for (std::size_t s = 0; s < Sources; ++s) from[s] = sources[s];
  for (std::size_t i = 0; i < count; ++i) {
    auto sum = Type::widen(load<stored>(from[0], first + i));
    if constexpr (!Begins) sum = total[i] + sum;
#pragma GCC unroll 4
    for (std::size_t s = 1; s < Sources; ++s) sum += Type::widen(load<stored>(from[s], first + i));
    total[i] = sum;
  }
  // Keeps gcc -O3 from merging passes into one that it then cannot vectorise.
  asm volatile("" ::: "memory");
}

// Types that are converted many at a time.
template <class Type>
concept in_bulk = requires(const std::byte* from, typename Type::wide* to) { Type::widen(from, to, std::size_t{1}); };

template <class Type, class Count>
[[gnu::always_inline]] inline void add_all(typename Type::wide* total, pointers sources, std::size_t first,
                                           Count count) {
  alignas(64) typename Type::wide next[tile];
  Type::widen(sources[0] + first * sizeof(typename Type::stored), total, count);
  for (const auto* source : sources.subspan(1)) {
    Type::widen(source + first * sizeof(typename Type::stored), next, count);
    for (std::size_t i = 0; i < count; ++i) total[i] += next[i];
  }
}

template <class Type, bool Begins, class Count>
[[gnu::always_inline]] inline void add_group(typename Type::wide* total, pointers sources, std::size_t first,
                                             Count count) {
  switch (sources.size()) {
    case 1:
      return add_sources<Type, 1, Begins>(total, sources, first, count);
    case 2:
      return add_sources<Type, 2, Begins>(total, sources, first, count);
    case 3:
      return add_sources<Type, 3, Begins>(total, sources, first, count);
    default:
      return add_sources<Type, side_by_side, Begins>(total, sources, first, count);
  }
}

template <class Type, class Count>
[[gnu::always_inline]] inline void add_groups(typename Type::wide* total, pointers sources, std::size_t first,
                                              Count count) {
  add_group<Type, true>(total, sources.first(std::min(side_by_side, sources.size())), first, count);
  for (auto next = side_by_side; next < sources.size(); next += side_by_side) {
    const auto left = sources.subspan(next);
    add_group<Type, false>(total, left.first(std::min(side_by_side, left.size())), first, count);
  }
}

// Elements from `first` on of all sources to the beginning of `out`. `Count` is a constant for whole tiles, which lets
// the compiler leave out all loop ends.
template <class Type, class Count>
[[gnu::always_inline]] inline void sum_tile(const task& of, std::size_t first, Count count, std::byte* out) {
  using stored = typename Type::stored;
  using wide = typename Type::wide;
  alignas(64) wide total[tile];
  if constexpr (in_bulk<Type>) {
    add_all<Type>(total, of.sources, first, count);
  } else {
    add_groups<Type>(total, of.sources, first, count);
  }
  if (of.op == reduction::mean) {
    const auto ranks = static_cast<wide>(of.sources.size());
    for (std::size_t i = 0; i < count; ++i) total[i] /= ranks;
  }
  // Written after every source's tile was read: that is what lets `out` be one of them.
  if constexpr (in_bulk<Type>) {
    Type::narrow(total, out, count);
  } else {
    for (std::size_t i = 0; i < count; ++i) store<stored>(out, i, Type::narrow(total[i]));
  }
}

template <class Type>
[[gnu::always_inline]] inline void sum_tiles(const task& of, std::size_t elements) {
  constexpr auto size = sizeof(typename Type::stored);
  alignas(64) std::byte cached[tile * size];
  const auto whole = elements / tile * tile;
  for (std::size_t first = 0; first < whole; first += tile) {
    auto* const out = of.out + first * size;
    sum_tile<Type>(of, first, std::integral_constant<std::size_t, tile>{}, of.streamed ? cached : out);
    if (of.streamed) stream(out, cached, sizeof cached);
  }
  if (whole < elements) sum_tile<Type>(of, whole, elements - whole, of.out + whole * size);
}

template <class Type>
void sum_portable(const task& of, std::size_t elements) {
  sum_tiles<Type>(of, elements);
}

#if defined(__x86_64__)
// The same loops in wider vectors; without fma, so that the bits are the same.
template <class Type>
[[gnu::target("avx2")]] void sum_avx2(const task& of, std::size_t elements) {
  sum_tiles<Type>(of, elements);
}
#endif

template <class Type>
void sum_as(const task& of, std::size_t bytes) {
  const auto elements = bytes / sizeof(typename Type::stored);
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return sum_avx2<Type>(of, elements);
#endif
  sum_portable<Type>(of, elements);
}

void sum_float16(const task& of, std::size_t bytes) {
#if defined(__x86_64__)
  if (float16_f16c::is_there()) return sum_avx2<float16_f16c>(of, bytes / sizeof(float16::stored));
#endif
  sum_as<float16>(of, bytes);
}

}  // namespace

void sum_ranks(dtype type, reduction op, pointers sources, std::byte* out, std::size_t bytes, bool streamed) {
  if (sources.empty() || type == dtype::boolean || (op == reduction::mean && is_integral(type))) {
    throw std::logic_error("sum_ranks: no sources, bool, or the mean of integers");
  }
  if (bytes == 0) return;
  if (sources.size() == 1) {
    std::memmove(out, sources[0], bytes);
    return;
  }
  const task of{op, sources, out, streamed};
  switch (type) {
    case dtype::boolean:
      return;
    case dtype::int8:
    case dtype::uint8:
      return sum_as<plain<std::uint8_t>>(of, bytes);
    case dtype::int16:
    case dtype::uint16:
      return sum_as<plain<std::uint16_t>>(of, bytes);
    case dtype::int32:
    case dtype::uint32:
      return sum_as<plain<std::uint32_t>>(of, bytes);
    case dtype::int64:
    case dtype::uint64:
      return sum_as<plain<std::uint64_t>>(of, bytes);
    // A complex number is a pair of reals, and sums and real quotients go by part.
    case dtype::float16:
    case dtype::complex32:
      return sum_float16(of, bytes);
    case dtype::bfloat16:
      return sum_as<bfloat16>(of, bytes);
    case dtype::float32:
    case dtype::complex64:
      return sum_as<plain<float>>(of, bytes);
    case dtype::float64:
    case dtype::complex128:
      return sum_as<plain<double>>(of, bytes);
    case dtype::float8_e4m3fn:
      return sum_as<float8_e4m3fn>(of, bytes);
    case dtype::float8_e4m3fnuz:
      return sum_as<float8_e4m3fnuz>(of, bytes);
    case dtype::float8_e5m2:
      return sum_as<float8_e5m2>(of, bytes);
    case dtype::float8_e5m2fnuz:
      return sum_as<float8_e5m2fnuz>(of, bytes);
    case dtype::float8_e8m0fnu:
      return sum_as<float8_e8m0fnu>(of, bytes);
  }
}

}  // namespace sheaf
