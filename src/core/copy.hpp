// SPDX-License-Identifier: MIT
// A block between its contiguous form (what travels) and its place in the gathered tensor. Large copies use the rank's
// threads.
#pragma once

#include <cstddef>
#include <sheaf/layout.hpp>

#include "core/stream.hpp"

namespace sheaf {

// Bytes [first, first + count) of block `rank`, read from the gathered tensor `whole` into `packed`.
void pack(const layout& at, int rank, const std::byte* whole, std::int64_t first, std::int64_t count, std::byte* packed,
          readers next = readers::near);
// The same bytes back into their place.
void unpack(const layout& at, int rank, std::int64_t first, std::int64_t count, const std::byte* packed,
            std::byte* whole);
// The whole block `rank`, from `packed` to its place in `whole`.
void place(const layout& at, int rank, const std::byte* packed, std::byte* whole, readers next = readers::near);
// The whole block `rank`, from one gathered tensor to another.
void copy_block(const layout& at, int rank, const std::byte* from, std::byte* to);

}  // namespace sheaf
