// SPDX-License-Identifier: MIT
// Where sums go: to their owners, or, where one owner has much more than the others, shared out over all ranks.
#pragma once

#include <cstddef>
#include <sheaf/layout.hpp>
#include <vector>

namespace sheaf::shm {

// An owner's block from so many bytes on is worth that.
std::int64_t worth_sharing(int world);
// Where each owner's rows begin in a segment of sums, on pages of their own, and behind the last one where they end.
std::vector<std::size_t> owner_places(const layout& at);

}  // namespace sheaf::shm
