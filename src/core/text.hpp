// SPDX-License-Identifier: MIT
// How values look in messages.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>

namespace sheaf {

// "[2, 3]"
inline std::string list(std::span<const std::int64_t> values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

// torch's errors go on with where they were thrown.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace sheaf
