// SPDX-License-Identifier: MIT
// Element types by number, name and size; the numbers travel in headers and never change.
#pragma once

#include <cstdint>
#include <string_view>

namespace sheaf {

enum class dtype : std::uint8_t {
  boolean = 0,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e4m3fnuz,
  float8_e5m2,
  float8_e5m2fnuz,
  float8_e8m0fnu,
  complex32,
};
inline constexpr int dtype_count = 21;

std::string_view name(dtype type);  // as torch spells it: "float32", "bool"
std::int64_t itemsize(dtype type);
bool is_integral(dtype type);  // bool is not

}  // namespace sheaf
