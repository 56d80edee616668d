// SPDX-License-Identifier: MIT
// The floating point types narrower than float32, to and from it as torch 2.13 casts them: to nearest even,
// denormals kept. Free of branches and tables, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace sheaf {

// Sign, exponent and mantissa as in IEEE 754. What differs is what the codes above the largest finite value mean.
enum class specials : std::uint8_t {
  infinity,  // exponents all ones: infinity and NaN
  nan_only,  // all ones is NaN, no infinity ("fn"): what is too large becomes the largest finite value
  one_nan,   // the code of -0 is the only NaN, no infinity ("fnuz"): what is too large becomes NaN
};

// A conditional on floating point results becomes a branch again, since they might trap; bit masks do not.
constexpr std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

template <class Code, int Mantissa, int Bias, specials Specials>
struct narrow_float {
  using stored = Code;
  using wide = float;

  static constexpr wide widen(stored code) {
    const std::uint32_t magnitude = code & magnitude_mask;
    const std::uint32_t sign = static_cast<std::uint32_t>(code & sign_mask) << (32 - bits);
    const std::uint32_t normal = (magnitude << shift) + (std::uint32_t{127 - Bias} << 23);
    // An integer times the smallest denormal: exact, and a normal float32.
    const auto denormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * unit);
    std::uint32_t value = choose(magnitude < smallest_normal_code, denormal, normal);
    if constexpr (Specials == specials::infinity) {
      value = choose(magnitude >= infinity_code, 0x7F800000u | (magnitude << shift), value);
    } else if constexpr (Specials == specials::nan_only) {
      value = choose(magnitude == magnitude_mask, quiet_nan, value);
    } else {
      value = choose(code == sign_mask, quiet_nan, value);
    }
    return std::bit_cast<float>(value | sign);
  }

  static constexpr stored narrow(wide from) {
    const auto value = std::bit_cast<std::uint32_t>(from);
    const std::uint32_t magnitude = value & 0x7FFFFFFFu;
    const std::uint32_t sign = (value >> (32 - bits)) & sign_mask;
    const std::uint32_t odd = (magnitude >> shift) & 1;
    const std::uint32_t normal =
        (magnitude - (std::uint32_t{127 - Bias} << 23) + (std::uint32_t{1} << (shift - 1)) - 1 + odd) >> shift;
    // Adding a number whose last bit is worth the smallest denormal makes the adder round to it.
    const std::uint32_t denormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + rounder) - std::bit_cast<std::uint32_t>(rounder);
    std::uint32_t code = choose(magnitude < smallest_normal, denormal, normal);
    code = choose((magnitude >= out_of_range) | (code > overflow_code), overflow_code, code);
    if constexpr (Specials == specials::one_nan) {
      code |= choose(code == 0, 0, sign);
    } else {
      code |= sign;
    }
    // One NaN, since which sign a sum of NaNs gets is up to the order in which the compiler puts its operands.
    return static_cast<stored>(choose(magnitude > 0x7F800000u, nan_code, code));
  }

 private:
  static constexpr int bits = 8 * sizeof(Code);
  static constexpr int shift = 23 - Mantissa;
  static constexpr std::uint32_t sign_mask = std::uint32_t{1} << (bits - 1);
  static constexpr std::uint32_t magnitude_mask = sign_mask - 1;
  static constexpr std::uint32_t smallest_normal_code = std::uint32_t{1} << Mantissa;
  static constexpr std::uint32_t smallest_normal = std::uint32_t{128 - Bias} << 23;
  static constexpr std::uint32_t infinity_code = magnitude_mask ^ (smallest_normal_code - 1);
  static constexpr std::uint32_t quiet_nan = 0x7FC00000u;
  static constexpr std::uint32_t nan_code = Specials == specials::infinity   ? infinity_code | smallest_normal_code >> 1
                                            : Specials == specials::nan_only ? magnitude_mask
                                                                             : sign_mask;
  static constexpr std::uint32_t overflow_code = Specials == specials::infinity   ? infinity_code
                                                 : Specials == specials::nan_only ? magnitude_mask - 1
                                                                                  : sign_mask;
  // Where `normal` would run into the sign.
  static constexpr std::uint32_t out_of_range = (std::uint32_t{127 - Bias} << 23) + (sign_mask << shift);
  static constexpr float unit = std::bit_cast<float>(std::uint32_t{128 - Bias - Mantissa} << 23);
  static constexpr float rounder = std::bit_cast<float>(std::uint32_t{128 - Bias - Mantissa + 23} << 23);
};

using float16 = narrow_float<std::uint16_t, 10, 15, specials::infinity>;
using float8_e5m2 = narrow_float<std::uint8_t, 2, 15, specials::infinity>;
using float8_e4m3fn = narrow_float<std::uint8_t, 3, 7, specials::nan_only>;
using float8_e5m2fnuz = narrow_float<std::uint8_t, 2, 16, specials::one_nan>;
using float8_e4m3fnuz = narrow_float<std::uint8_t, 3, 8, specials::one_nan>;

// The upper half of a float32.
struct bfloat16 {
  using stored = std::uint16_t;
  using wide = float;

  static constexpr wide widen(stored code) { return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16); }
  static constexpr stored narrow(wide from) {
    const auto value = std::bit_cast<std::uint32_t>(from);
    const std::uint32_t rounded = (value + 0x7FFFu + ((value >> 16) & 1)) >> 16;
    return static_cast<stored>(choose((value & 0x7FFFFFFFu) > 0x7F800000u, 0x7FC0u, rounded));
  }
};

// Powers of two without a sign: the exponent of a float32, where 0 is 2^-127 and 255 NaN.
struct float8_e8m0fnu {
  using stored = std::uint8_t;
  using wide = float;

  static constexpr wide widen(stored code) {
    const std::uint32_t exponent = static_cast<std::uint32_t>(code) << 23;
    return std::bit_cast<float>(choose(code == 0, 0x00400000u, choose(code == 255, 0x7FC00000u, exponent)));
  }
  static constexpr stored narrow(wide from) {
    const auto value = std::bit_cast<std::uint32_t>(from) & 0x7FFFFFFFu;
    const std::uint32_t exponent = value >> 23;
    const std::uint32_t rest = value & 0x007FFFFFu;
    const bool up = (rest > 0x00400000u) | ((rest == 0x00400000u) & (exponent > 0));
    return static_cast<stored>(choose(exponent == 255, 255, exponent + up));
  }
};

}  // namespace sheaf
