// SPDX-License-Identifier: MIT
// Part of a block, and where it lies in the gathered tensor.
#pragma once

#include <algorithm>
#include <sheaf/layout.hpp>

namespace sheaf {

// Bytes [first, first + count) of a block as at most three runs of whole or part chunks: calls
// run(offset in the gathered tensor, offset in the packed bytes, bytes of a chunk, chunks).
template <class Run>
void for_interval(const layout& at, int rank, std::int64_t first, std::int64_t count, Run&& run) {
  const auto chunk = at.block_chunk_bytes(rank);
  if (chunk == 0 || count == 0) return;
  auto place = at.block_offset(rank) + (first / chunk) * at.chunk_bytes();
  std::int64_t done = 0;
  if (const auto inside = first % chunk; inside != 0) {
    done = std::min(chunk - inside, count);
    run(place + inside, std::int64_t{0}, done, std::int64_t{1});
    place += at.chunk_bytes();
  }
  const auto whole = (count - done) / chunk;
  if (whole != 0) run(place, done, chunk, whole);
  done += whole * chunk;
  if (done < count) run(place + whole * at.chunk_bytes(), done, count - done, std::int64_t{1});
}

}  // namespace sheaf
