// SPDX-License-Identifier: MIT
// What a gradient means: the caller says which.
#pragma once

#include <cstdint>

namespace sheaf {

// For y = all_gather(x) and losses L_r(y), rank r receives
//   sum:  its rows of the sum over q of dL_q/dy
//   mean: the same divided by the number of ranks
//   own:  its rows of dL_r/dy, without communication
enum class gradient : std::uint8_t { sum, mean, own };

}  // namespace sheaf
