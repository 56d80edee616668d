// SPDX-License-Identifier: MIT
// Errors that say how many of the calls that follow in the same step of the program's are given up with the call that
// they end, so that ranks are in step at the next step.
#pragma once

#include <cstdint>
#include <sheaf/error.hpp>
#include <string>

namespace sheaf {

// Every rank comes to it, and gives up as many.
struct disagreement : value_error {
  disagreement(const std::string& text, std::uint8_t calls) : value_error(text), given_up(calls) {}
  std::uint8_t given_up;
};

// Another rank is past this call already. Who gives up more than `missed` calls that follow goes past that rank.
struct left_behind : rank_error {
  left_behind(const std::string& text, std::uint64_t calls) : rank_error(text), missed(calls) {}
  std::uint64_t missed;
};

}  // namespace sheaf
