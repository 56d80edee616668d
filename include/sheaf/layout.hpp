// SPDX-License-Identifier: MIT
// Where every rank's block lies in the gathered tensor. One pure function, 64 bit, overflow refused;
// it serves every engine and every dim.
#pragma once

#include <cstdint>
#include <sheaf/export.hpp>
#include <span>
#include <vector>

namespace sheaf {

// Along `dim` the gathered tensor is `outer` chunks of `rows` rows of `row_bytes` bytes. Block r is rows
// [offsets[r], offsets[r] + sizes[r]) of every chunk. A rank's own tensor is the same with its own rows alone.
struct layout {
  std::int64_t outer = 1;
  std::int64_t row_bytes = 0;
  std::int64_t rows = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> offsets;

  std::int64_t chunk_bytes() const { return rows * row_bytes; }
  std::int64_t bytes() const { return outer * chunk_bytes(); }
  std::int64_t block_chunk_bytes(int rank) const { return sizes[rank] * row_bytes; }
  std::int64_t block_bytes(int rank) const { return outer * block_chunk_bytes(rank); }
  std::int64_t block_offset(int rank) const { return offsets[rank] * row_bytes; }
};

// `shape` is any rank's shape (its extent along `dim` is not looked at). Throws sheaf::value_error when a size is
// negative, `dim` is out of range or the gathered tensor would not fit in 63 bits.
SHEAF_API layout make_layout(std::span<const std::int64_t> shape, std::int64_t dim, std::vector<std::int64_t> sizes,
                             std::int64_t itemsize);

}  // namespace sheaf
