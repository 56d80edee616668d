// SPDX-License-Identifier: MIT
// How blocks of a device's tensors go from every rank to every other, by the sizes alone: the same on all ranks.
#pragma once

#include <sheaf/layout.hpp>

namespace sheaf {

enum class way {
  even,     // one collective
  direct,   // every block to every rank at once
  grouped,  // round by round: each rank sends everything once
  staged    // the same, into memory where blocks begin at whole vectors, and from there to their places
};

// Of blocks of bytes that lie one after another.
way way_of(const layout& at);

inline constexpr std::int64_t vector_bytes = 16;  // a multiple of every element's size

constexpr std::int64_t whole_vectors(std::int64_t bytes) {
  return (bytes + vector_bytes - 1) / vector_bytes * vector_bytes;
}

}  // namespace sheaf
