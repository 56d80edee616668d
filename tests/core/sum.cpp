// SPDX-License-Identifier: MIT
// Sums over ranks against one written element by element; narrow types against their definition.
#include "core/sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "core/narrow_float.hpp"
#include "core/stream.hpp"

namespace {

using namespace sheaf;
using bytes = std::vector<std::byte>;

template <class T>
struct number {
  using stored = T;
  static T widen(T value) { return value; }
  static T narrow(T value) { return value; }
};

// In rank order from rank 0's value, one element at a time.
template <class Type>
bytes expected(reduction op, const std::vector<bytes>& blocks) {
  using stored = typename Type::stored;
  bytes out(blocks[0].size());
  for (std::size_t at = 0; at < out.size(); at += sizeof(stored)) {
    const auto element = [&](std::size_t rank) {
      stored value;
      std::memcpy(&value, blocks[rank].data() + at, sizeof(stored));
      return Type::widen(value);
    };
    auto total = element(0);
    for (std::size_t rank = 1; rank < blocks.size(); ++rank) total += element(rank);
    if (op == reduction::mean) total /= static_cast<decltype(total)>(blocks.size());
    const stored result = Type::narrow(total);
    std::memcpy(out.data() + at, &result, sizeof(stored));
  }
  return out;
}

bytes expected(dtype type, reduction op, const std::vector<bytes>& blocks) {
  if (blocks.size() == 1) return blocks[0];
  switch (type) {
    case dtype::boolean:
      break;
    case dtype::int8:
    case dtype::uint8:
      return expected<number<std::uint8_t>>(op, blocks);
    case dtype::int16:
    case dtype::uint16:
      return expected<number<std::uint16_t>>(op, blocks);
    case dtype::int32:
    case dtype::uint32:
      return expected<number<std::uint32_t>>(op, blocks);
    case dtype::int64:
    case dtype::uint64:
      return expected<number<std::uint64_t>>(op, blocks);
    case dtype::float16:
    case dtype::complex32:
      return expected<float16>(op, blocks);
    case dtype::bfloat16:
      return expected<bfloat16>(op, blocks);
    case dtype::float32:
    case dtype::complex64:
      return expected<number<float>>(op, blocks);
    case dtype::float64:
    case dtype::complex128:
      return expected<number<double>>(op, blocks);
    case dtype::float8_e4m3fn:
      return expected<float8_e4m3fn>(op, blocks);
    case dtype::float8_e4m3fnuz:
      return expected<float8_e4m3fnuz>(op, blocks);
    case dtype::float8_e5m2:
      return expected<float8_e5m2>(op, blocks);
    case dtype::float8_e5m2fnuz:
      return expected<float8_e5m2fnuz>(op, blocks);
    case dtype::float8_e8m0fnu:
      return expected<float8_e8m0fnu>(op, blocks);
  }
  return {};
}

// Any bits would do for integers; for floats, exponents stay where sums round but are no NaN.
bytes random_block(std::mt19937_64& random, dtype type, std::size_t elements) {
  bytes made(elements * itemsize(type));
  for (auto& byte : made) byte = static_cast<std::byte>(random());
  const auto fill = [&](auto cast) {
    using stored = decltype(cast(0.0));
    for (std::size_t at = 0; at < made.size(); at += sizeof(stored)) {
      const stored value = cast(std::normal_distribution<double>()(random));
      std::memcpy(made.data() + at, &value, sizeof(stored));
    }
  };
  if (type == dtype::float32 || type == dtype::complex64) fill([](double x) { return static_cast<float>(x); });
  if (type == dtype::float64 || type == dtype::complex128) fill([](double x) { return x; });
  if (type == dtype::bfloat16) fill([](double x) { return bfloat16::narrow(static_cast<float>(x)); });
  if (type == dtype::float16 || type == dtype::complex32) {
    fill([](double x) { return float16::narrow(static_cast<float>(x)); });
  }
  return made;
}

std::vector<const std::byte*> addresses(const std::vector<bytes>& blocks) {
  std::vector<const std::byte*> all;
  for (const auto& block : blocks) all.push_back(block.data());
  return all;
}

bool may(dtype type, reduction op) { return op == reduction::sum || !is_integral(type); }

TEST(sum, every_dtype_world_and_length) {
  std::mt19937_64 random(5);
  for (int number = 1; number < dtype_count; ++number) {
    const auto type = static_cast<dtype>(number);
    for (const auto op : {reduction::sum, reduction::mean}) {
      if (!may(type, op)) continue;
      for (const int world : {1, 2, 3, 4, 5, 9}) {
        for (const std::size_t elements : {0, 1, 7, 1024, 1025, 3001}) {
          std::vector<bytes> blocks;
          for (int rank = 0; rank < world; ++rank) blocks.push_back(random_block(random, type, elements));
          const auto truth = expected(type, op, blocks);
          bytes out(elements * itemsize(type)), streamed(out.size() + 1);
          sum_ranks(type, op, addresses(blocks), out.data(), out.size());
          ASSERT_EQ(out, truth) << name(type) << " W = " << world << " n = " << elements;
          if (!is_streamed(1 << 30, readers::near)) continue;
          sum_ranks(type, op, addresses(blocks), streamed.data() + 1, out.size(), true);
          end_streams();
          ASSERT_EQ(bytes(streamed.begin() + 1, streamed.end()), truth) << name(type) << ", streamed, W = " << world;
        }
      }
    }
  }
}

TEST(sum, out_may_be_any_source_and_nothing_need_be_aligned) {
  std::mt19937_64 random(6);
  for (int number = 1; number < dtype_count; ++number) {
    const auto type = static_cast<dtype>(number);
    for (int target = 0; target < 3; ++target) {
      std::vector<bytes> blocks;
      for (int rank = 0; rank < 3; ++rank) blocks.push_back(random_block(random, type, 2500));
      const auto truth = expected(type, reduction::sum, blocks);
      std::vector<bytes> shifted(3, bytes(truth.size() + 3));
      std::vector<const std::byte*> sources;
      for (int rank = 0; rank < 3; ++rank) {
        std::memcpy(shifted[rank].data() + rank + 1, blocks[rank].data(), truth.size());
        sources.push_back(shifted[rank].data() + rank + 1);
      }
      auto* out = shifted[target].data() + target + 1;
      sum_ranks(type, reduction::sum, sources, out, truth.size());
      ASSERT_EQ(bytes(out, out + truth.size()), truth) << name(type) << " into source " << target;
    }
  }
}

template <class T>
std::vector<T> sum_of(dtype type, reduction op, const std::vector<std::vector<T>>& blocks) {
  std::vector<const std::byte*> sources;
  for (const auto& block : blocks) sources.push_back(reinterpret_cast<const std::byte*>(block.data()));
  std::vector<T> out(blocks[0].size());
  sum_ranks(type, op, sources, reinterpret_cast<std::byte*>(out.data()), out.size() * sizeof(T));
  return out;
}

TEST(sum, goes_in_rank_order) {
  // From the left 1e8 swallows 1 and is taken away again; any other order keeps the 1.
  EXPECT_EQ(sum_of<float>(dtype::float32, reduction::sum, {{1, 1e8f}, {1e8f, -1e8f}, {-1e8f, 1}})[0], 0.0f);
  EXPECT_EQ(sum_of<float>(dtype::float32, reduction::sum, {{1, 1e8f}, {1e8f, -1e8f}, {-1e8f, 1}})[1], 1.0f);
  EXPECT_EQ(sum_of<double>(dtype::complex128, reduction::sum, {{1, 2}, {1e17, 0}, {-1e17, 3}}),
            (std::vector<double>{0, 5}));
}

TEST(sum, starts_from_rank_0s_value_not_from_zero) {
  const auto out = sum_of<float>(dtype::float32, reduction::sum, {{-0.0f}, {-0.0f}});
  EXPECT_TRUE(std::signbit(out[0]));
}

TEST(sum, integers_wrap) {
  EXPECT_EQ(sum_of<std::int8_t>(dtype::int8, reduction::sum, {{127, -128}, {1, -1}}),
            (std::vector<std::int8_t>{-128, 127}));
  const auto most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(sum_of<std::int64_t>(dtype::int64, reduction::sum, {{most}, {1}}),
            (std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(sum_of<std::uint16_t>(dtype::uint16, reduction::sum, {{65535}, {65535}, {3}}),
            (std::vector<std::uint16_t>{1}));
}

TEST(sum, narrow_types_round_once) {
  // 1 + 2^-11 + 2^-11: rounded after each step it stays 1, rounded once it is the next float16.
  const std::vector<std::vector<std::uint16_t>> halves{{0x3C00}, {0x1000}, {0x1000}};
  EXPECT_EQ(sum_of(dtype::float16, reduction::sum, halves)[0], 0x3C01);
  // 60000 + 60000 is beyond float16, its mean is not.
  EXPECT_EQ(sum_of<std::uint16_t>(dtype::float16, reduction::mean, {{0x7B53}, {0x7B53}})[0], 0x7B53);
  EXPECT_EQ(sum_of<std::uint16_t>(dtype::float16, reduction::sum, {{0x7B53}, {0x7B53}})[0], 0x7C00);
  EXPECT_EQ(sum_of<std::uint16_t>(dtype::bfloat16, reduction::sum, {{0x3F80}, {0x3B80}, {0x3B80}})[0], 0x3F81);
  EXPECT_EQ(sum_of<std::uint8_t>(dtype::float8_e4m3fn, reduction::sum, {{0x7E}, {0x7E}})[0], 0x7E);
  EXPECT_EQ(sum_of<std::uint8_t>(dtype::float8_e4m3fnuz, reduction::sum, {{0x7F}, {0x7F}})[0], 0x80);
  EXPECT_EQ(sum_of<std::uint8_t>(dtype::float8_e5m2, reduction::sum, {{0x7B}, {0x7B}})[0], 0x7C);
  EXPECT_EQ(sum_of<std::uint8_t>(dtype::float8_e8m0fnu, reduction::sum, {{127}, {127}})[0], 128);
}

// Every code of a rank with any of the others': denormals, infinities and NaNs as well, which have one code.
TEST(sum, two_bytes_of_any_bits) {
  std::mt19937_64 random(11);
  std::vector<std::uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), 0);
  for (const auto type : {dtype::float16, dtype::bfloat16}) {
    for (const int world : {2, 3, 5}) {
      std::vector<bytes> blocks;
      for (int rank = 0; rank < world; ++rank) {
        const auto whole = std::as_bytes(std::span(codes));
        blocks.emplace_back(whole.begin(), whole.end() - 2 * world);  // no whole vectors
        std::ranges::shuffle(codes, random);
      }
      for (const auto op : {reduction::sum, reduction::mean}) {
        bytes out(blocks[0].size());
        sum_ranks(type, op, addresses(blocks), out.data(), out.size());
        ASSERT_EQ(out, expected(type, op, blocks)) << name(type) << " W = " << world;
      }
    }
  }
}

TEST(sum, means_divide) {
  // A product with the float nearest to 1/3 would give another last bit for some of these.
  std::vector<float> values;
  for (int i = 1; i < 200; ++i) values.push_back(static_cast<float>(i) * 0.1f);
  const std::vector<float> zeros(values.size());
  const auto out = sum_of<float>(dtype::float32, reduction::mean, {values, zeros, zeros});
  bool product_differs = false;
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(out[i], values[i] / 3.0f);
    product_differs |= out[i] != values[i] * (1.0f / 3.0f);
  }
  EXPECT_TRUE(product_differs);
}

// Every code to float32 and back; `value` is the type's definition.
template <class Type, class Value>
void check_codes(Value&& value) {
  for (unsigned code = 0; code <= std::numeric_limits<typename Type::stored>::max(); ++code) {
    const auto stored = static_cast<typename Type::stored>(code);
    const double truth = value(code);
    if (std::isnan(truth)) {
      ASSERT_TRUE(std::isnan(Type::widen(stored))) << code;
      ASSERT_TRUE(std::isnan(Type::widen(Type::narrow(Type::widen(stored))))) << code;
    } else {
      ASSERT_EQ(static_cast<double>(Type::widen(stored)), truth) << code;
      ASSERT_EQ(Type::narrow(Type::widen(stored)), stored) << code;
    }
  }
}

// Sign, exponent, mantissa; `last` is the largest finite magnitude, `after` what lies above it.
template <class Type>
void check_ieee(int mantissa, int bias, unsigned last, double after) {
  const unsigned sign = 1u << (8 * sizeof(typename Type::stored) - 1);
  check_codes<Type>([=](unsigned code) {
    const unsigned magnitude = code & (sign - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa);
    const double fraction = std::ldexp(magnitude & ((1u << mantissa) - 1), -mantissa);
    if (magnitude > last) return magnitude == last + 1 && std::isinf(after) ? (code & sign ? -after : after) : NAN;
    if (code == sign && std::isnan(after) && last == sign - 1) return after;
    const double size = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    return code & sign ? -size : size;
  });
}

TEST(sum, narrow_types_are_what_they_say) {
  check_ieee<float16>(10, 15, 0x7BFF, INFINITY);
  check_ieee<bfloat16>(7, 127, 0x7F7F, INFINITY);
  check_ieee<float8_e5m2>(2, 15, 0x7B, INFINITY);
  check_ieee<float8_e4m3fn>(3, 7, 0x7E, NAN);
  check_ieee<float8_e5m2fnuz>(2, 16, 0x7F, NAN);
  check_ieee<float8_e4m3fnuz>(3, 8, 0x7F, NAN);
  check_codes<float8_e8m0fnu>(
      [](unsigned code) { return code == 255 ? NAN : std::ldexp(1.0, static_cast<int>(code) - 127); });
}

// Between two neighbouring codes: below the middle goes down, above it up, the middle to the even one.
template <class Type>
void check_rounding(unsigned last) {
  for (unsigned code = 0; code < last; ++code) {
    const float low = Type::widen(static_cast<typename Type::stored>(code));
    const float high = Type::widen(static_cast<typename Type::stored>(code + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(Type::narrow(std::nextafter(middle, low)), code);
    ASSERT_EQ(Type::narrow(middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(Type::narrow(std::nextafter(middle, high)), code + 1);
  }
}

TEST(sum, narrow_types_round_to_nearest_even) {
  check_rounding<float16>(0x7BFF);
  check_rounding<bfloat16>(0x7F7F);
  check_rounding<float8_e5m2>(0x7B);
  check_rounding<float8_e4m3fn>(0x7E);
  check_rounding<float8_e5m2fnuz>(0x7F);
  check_rounding<float8_e4m3fnuz>(0x7F);
}

}  // namespace
