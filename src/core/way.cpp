// SPDX-License-Identifier: MIT
#include "core/way.hpp"

#include <algorithm>

namespace sheaf {
namespace {

// Measured on an H200, over sockets. Round by round takes a step per rank, which small results wait for; between two
// ranks it is one step anyway.
constexpr std::int64_t most_direct = std::int64_t{1} << 20;
constexpr std::int64_t most_direct_of_two = std::int64_t{256} << 10;
// And no rank sends more than this directly.
constexpr std::int64_t most_sent = std::int64_t{3} << 20;
// NCCL copies what begins at whole vectors faster, but of little, and of much it is not worth a second result's memory.
constexpr std::int64_t least_staged = std::int64_t{256} << 10;
constexpr std::int64_t most_staged = std::int64_t{8} << 20;

bool is_direct(const layout& at) {
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  if (at.bytes() > (world > 2 ? most_direct : most_direct_of_two)) return false;
  return (world - 1) * std::ranges::max(at.sizes) <= most_sent;
}

bool is_staged(const layout& at) {
  if (at.bytes() < least_staged || at.bytes() > most_staged) return false;
  for (std::size_t rank = 0; rank < at.sizes.size(); ++rank) {
    if (at.sizes[rank] > 0 && at.offsets[rank] % vector_bytes != 0) return true;
  }
  return false;
}

}  // namespace

way way_of(const layout& at) {
  if (std::ranges::all_of(at.sizes, [&](std::int64_t bytes) { return bytes == at.sizes[0]; })) return way::even;
  if (is_direct(at)) return way::direct;
  return is_staged(at) ? way::staged : way::grouped;
}

}  // namespace sheaf
