// SPDX-License-Identifier: MIT
// All ranks' headers to "go on", or to one error text that is the same on every rank.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/header.hpp"

namespace sheaf {

// How many tensors' sizes were given, and how many numbers (int64, little-endian) a payload therefore begins with: one
// a rank for each of these tensors or, where those are more than a frame has room for, a digest of them.
std::size_t given_tensors(const header& head);
std::size_t given_numbers(const header& head, std::size_t world);
inline constexpr std::size_t max_given_numbers = 384;         // beside 64 records and inline_bytes of data in a frame
inline constexpr std::size_t max_given_numbers_of_one = 896;  // of one tensor, beside its record and the same data
inline constexpr std::size_t digest_numbers = 2;
// All sizes given as they travel: themselves, or their digest.
std::vector<std::int64_t> as_given(const header& head, std::size_t world, std::vector<std::int64_t> sizes);

// frames[r] is what rank r said; nullopt: what came from rank r was no frame of this protocol. Payloads of calls with
// sizes given begin with these. Returns the error, or nothing to go on.
std::optional<std::string> verdict(std::span<const std::optional<frame>> frames);
// How many calls that follow all ranks give up where the verdict is an error. Not all hear it: a rank that refuses may
// hear nobody, and one with fewer calls to follow may be gone by its deadline. So it is what these give up by
// themselves. Where a rank has started its call, none: what it numbers next may have begun.
std::uint8_t given_up_by_all(std::span<const std::optional<frame>> frames);

// "float32 on ranks 0, 2, 3; int32 on rank 1": equal values together, in the order of their first rank.
std::string group_by_value(std::span<const std::string> values);
// "rank 1", "ranks 0, 2, 3"
std::string rank_list(std::span<const int> ranks);

}  // namespace sheaf
