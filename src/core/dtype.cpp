// SPDX-License-Identifier: MIT
#include "core/dtype.hpp"

#include <array>

namespace sheaf {
namespace {

struct traits {
  std::string_view name;
  std::int64_t itemsize;
};

// In the order of the enum.
constexpr std::array<traits, dtype_count> all{{
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"complex64", 8},
    {"complex128", 16},
    {"float8_e4m3fn", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"complex32", 4},
}};
static_assert(static_cast<int>(dtype::complex32) + 1 == dtype_count);

}  // namespace

std::string_view name(dtype type) { return all.at(static_cast<std::size_t>(type)).name; }

std::int64_t itemsize(dtype type) { return all.at(static_cast<std::size_t>(type)).itemsize; }

bool is_integral(dtype type) { return type >= dtype::int8 && type <= dtype::uint64; }

}  // namespace sheaf
