// SPDX-License-Identifier: MIT
// Tags of 30 bits. Calls that disagree must not match: a data message's tag is a hash of all that ranks must agree on.
#pragma once

#include <cstdint>

#include "core/engine.hpp"

namespace sheaf::p2p {

inline constexpr std::uint32_t frame_tag = 0;

class data_tags {
 public:
  data_tags(const call& now, const layout& at);
  data_tags(const call& now, const bundle& all);
  // Never frame_tag.
  std::uint32_t operator()(std::uint64_t piece) const;

 private:
  std::uint64_t call_;
};

}  // namespace sheaf::p2p
