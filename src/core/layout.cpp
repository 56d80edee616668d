// SPDX-License-Identifier: MIT
#include <sheaf/error.hpp>
#include <sheaf/layout.hpp>
#include <string>
#include <utility>

#include "core/text.hpp"

namespace sheaf {
namespace {

using extents = std::span<const std::int64_t>;

void check_arguments(extents shape, std::int64_t dim, extents sizes, std::int64_t itemsize) {
  const auto ndim = static_cast<std::int64_t>(shape.size());
  if (ndim == 0) throw value_error("shape: expected at least one dim, got a 0-d tensor; use reshape(1)");
  if (dim < 0 || dim >= ndim) {
    throw value_error("dim: expected 0 to " + std::to_string(ndim - 1) + " for shape " + list(shape) + ", got " +
                      std::to_string(dim));
  }
  for (std::int64_t i = 0; i < ndim; ++i) {
    if (i != dim && shape[i] < 0) {
      throw value_error("shape: expected no negative extent, got " + list(shape) + " (dim " + std::to_string(i) + ")");
    }
  }
  if (sizes.empty()) throw value_error("sizes: expected one size a rank, got none");
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    if (sizes[rank] < 0) {
      throw value_error("sizes: expected no negative size, got " + std::to_string(sizes[rank]) + " for rank " +
                        std::to_string(rank));
    }
  }
  if (itemsize <= 0) throw value_error("itemsize: expected at least 1 byte, got " + std::to_string(itemsize));
}

// A product or sum in 63 bits that remembers whether it ever left them.
struct checked {
  std::int64_t value;
  bool overflow = false;

  checked& operator*=(std::int64_t factor) {
    overflow |= __builtin_mul_overflow(value, factor, &value);
    return *this;
  }
  checked& operator+=(std::int64_t term) {
    overflow |= __builtin_add_overflow(value, term, &value);
    return *this;
  }
};

// A zero extent empties the tensor however large the others are.
checked product(checked start, extents factors) {
  for (const auto factor : factors) {
    if (factor == 0) return {0};
  }
  for (const auto factor : factors) start *= factor;
  return start;
}

}  // namespace

layout make_layout(extents shape, std::int64_t dim, std::vector<std::int64_t> sizes, std::int64_t itemsize) {
  check_arguments(shape, dim, sizes, itemsize);
  const auto outer = product({1}, shape.first(dim));
  const auto row_bytes = product({itemsize}, shape.subspan(dim + 1));

  layout at;
  at.offsets.reserve(sizes.size());
  checked rows{0};
  for (const auto size : sizes) {
    at.offsets.push_back(rows.value);
    rows += size;
  }
  checked chunk = rows;
  chunk *= row_bytes.value;
  checked whole = chunk;
  whole *= outer.value;
  if (outer.overflow || row_bytes.overflow || whole.overflow) {
    throw value_error("sizes " + list(sizes) + " along dim " + std::to_string(dim) + " of shape " + list(shape) +
                      " with " + std::to_string(itemsize) + " bytes an element: the gathered tensor would need more " +
                      "than 2^63 - 1 bytes");
  }
  at.outer = outer.value;
  at.row_bytes = row_bytes.value;
  at.rows = rows.value;
  at.sizes = std::move(sizes);
  return at;
}

}  // namespace sheaf
