// SPDX-License-Identifier: MIT
// All ranks' headers to "go on", or to one error text that is the same on every rank.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/header.hpp"

namespace sheaf {

// frames[r] is what rank r said; nullopt: what came from rank r was no frame of this protocol. Payloads of sized calls
// begin with the sizes given, one int64 a rank, little-endian. Returns the error, or nothing to go on.
std::optional<std::string> verdict(std::span<const std::optional<frame>> frames);

// "float32 on ranks 0, 2, 3; int32 on rank 1": equal values together, in the order of their first rank.
std::string group_by_value(std::span<const std::string> values);
// "rank 1", "ranks 0, 2, 3"
std::string rank_list(std::span<const int> ranks);

}  // namespace sheaf
