// SPDX-License-Identifier: MIT
// What a rank that waits long, gives up or refuses leaves for the others to read, and how they put it in an error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/engine.hpp"

namespace sheaf {

struct note {
  std::string group;
  std::uint64_t sequence = 0;
  std::string said;  // "is in all_gather #17 (float32 [3, 4], dim 0)"

  std::string encode() const;
  static std::optional<note> decode(const std::string& text);
};

// "all_gather #17 (float32 [3, 4], dim 0, sizes [2, 3])"
std::string describe_call(const call& now);

// What `left` means to a rank of `group` in call number `sequence`: nothing where it is about an older call.
bool is_current(const std::optional<note>& left, const std::string& group, std::uint64_t sequence);
// "rank 1 is in …", "rank 1 never came", "rank 1 never came: it is in … of group "3""
std::string tell(int rank, const std::optional<note>& left, const std::string& group, std::uint64_t sequence);

}  // namespace sheaf
