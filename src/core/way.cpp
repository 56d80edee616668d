// SPDX-License-Identifier: MIT
#include "core/way.hpp"

#include <algorithm>
#include <iterator>

namespace sheaf {
namespace {

// Measured on an H200, over sockets. Round by round takes a step per rank, which small results wait for. Directly, a
// large block leaves its rank once for each other one.
constexpr std::int64_t most_direct = std::int64_t{1} << 20;
constexpr std::int64_t largest_direct = std::int64_t{256} << 10;
// More ranks than were measured: none sends more than this.
constexpr std::int64_t most_sent = std::int64_t{3} << 20;
// NCCL copies what begins at whole vectors faster, but of little, and of much it is not worth a second result's memory.
constexpr std::int64_t least_staged = std::int64_t{256} << 10;
constexpr std::int64_t most_staged = std::int64_t{8} << 20;

bool is_direct(const layout& at) {
  const auto others = std::ssize(at.sizes) - 1;
  const auto largest = std::ranges::max(at.sizes);
  return at.bytes() <= most_direct && largest <= largest_direct && others * largest <= most_sent;
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
