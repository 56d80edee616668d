// SPDX-License-Identifier: MIT
#include "core/sum.hpp"

#include <cstring>
#include <stdexcept>
#include <type_traits>

#include "core/narrow_float.hpp"

namespace sheaf {
namespace {

using pointers = std::span<const std::byte* const>;

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

// Element `first` on. `Count` is a constant for whole tiles, which lets the compiler leave out all loop ends.
template <class Type, class Count>
[[gnu::always_inline]] inline void sum_tile(reduction op, pointers sources, std::byte* out, std::size_t first,
                                            Count count) {
  using stored = typename Type::stored;
  using wide = typename Type::wide;
  alignas(64) wide total[tile];
  for (std::size_t i = 0; i < count; ++i) total[i] = Type::widen(load<stored>(sources[0], first + i));
  for (const auto* source : sources.subspan(1)) {
    for (std::size_t i = 0; i < count; ++i) total[i] += Type::widen(load<stored>(source, first + i));
    // Keeps gcc -O3 from merging the passes of several sources into one that it then cannot vectorise.
    asm volatile("" ::: "memory");
  }
  if (op == reduction::mean) {
    const auto ranks = static_cast<wide>(sources.size());
    for (std::size_t i = 0; i < count; ++i) total[i] /= ranks;
  }
  // Written after every source's tile was read: that is what lets `out` be one of them.
  for (std::size_t i = 0; i < count; ++i) store<stored>(out, first + i, Type::narrow(total[i]));
}

template <class Type>
[[gnu::always_inline]] inline void sum_tiles(reduction op, pointers sources, std::byte* out, std::size_t elements) {
  const auto whole = elements / tile * tile;
  for (std::size_t first = 0; first < whole; first += tile) {
    sum_tile<Type>(op, sources, out, first, std::integral_constant<std::size_t, tile>{});
  }
  if (whole < elements) sum_tile<Type>(op, sources, out, whole, elements - whole);
}

template <class Type>
void sum_portable(reduction op, pointers sources, std::byte* out, std::size_t elements) {
  sum_tiles<Type>(op, sources, out, elements);
}

#if defined(__x86_64__)
// The same loops in wider vectors; without fma, so that the bits are the same.
template <class Type>
[[gnu::target("avx2")]] void sum_avx2(reduction op, pointers sources, std::byte* out, std::size_t elements) {
  sum_tiles<Type>(op, sources, out, elements);
}
#endif

template <class Type>
void sum_as(reduction op, pointers sources, std::byte* out, std::size_t bytes) {
  const auto elements = bytes / sizeof(typename Type::stored);
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return sum_avx2<Type>(op, sources, out, elements);
#endif
  sum_portable<Type>(op, sources, out, elements);
}

}  // namespace

void sum_ranks(dtype type, reduction op, pointers sources, std::byte* out, std::size_t bytes) {
  if (sources.empty() || type == dtype::boolean || (op == reduction::mean && is_integral(type))) {
    throw std::logic_error("sum_ranks: no sources, bool, or the mean of integers");
  }
  if (bytes == 0) return;
  if (sources.size() == 1) {
    std::memmove(out, sources[0], bytes);
    return;
  }
  switch (type) {
    case dtype::boolean:
      return;
    case dtype::int8:
    case dtype::uint8:
      return sum_as<plain<std::uint8_t>>(op, sources, out, bytes);
    case dtype::int16:
    case dtype::uint16:
      return sum_as<plain<std::uint16_t>>(op, sources, out, bytes);
    case dtype::int32:
    case dtype::uint32:
      return sum_as<plain<std::uint32_t>>(op, sources, out, bytes);
    case dtype::int64:
    case dtype::uint64:
      return sum_as<plain<std::uint64_t>>(op, sources, out, bytes);
    // A complex number is a pair of reals, and sums and real quotients go by part.
    case dtype::float16:
    case dtype::complex32:
      return sum_as<float16>(op, sources, out, bytes);
    case dtype::bfloat16:
      return sum_as<bfloat16>(op, sources, out, bytes);
    case dtype::float32:
    case dtype::complex64:
      return sum_as<plain<float>>(op, sources, out, bytes);
    case dtype::float64:
    case dtype::complex128:
      return sum_as<plain<double>>(op, sources, out, bytes);
    case dtype::float8_e4m3fn:
      return sum_as<float8_e4m3fn>(op, sources, out, bytes);
    case dtype::float8_e4m3fnuz:
      return sum_as<float8_e4m3fnuz>(op, sources, out, bytes);
    case dtype::float8_e5m2:
      return sum_as<float8_e5m2>(op, sources, out, bytes);
    case dtype::float8_e5m2fnuz:
      return sum_as<float8_e5m2fnuz>(op, sources, out, bytes);
    case dtype::float8_e8m0fnu:
      return sum_as<float8_e8m0fnu>(op, sources, out, bytes);
  }
}

}  // namespace sheaf
