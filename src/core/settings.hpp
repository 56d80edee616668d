// SPDX-License-Identifier: MIT
// The SHEAF_* environment, read once for each group; ranks compare it at the group's first call.
#pragma once

#include <cstdint>
#include <string>

namespace sheaf {

struct settings {
  bool check = false;                                  // SHEAF_CHECK=1: headers also for large blocks with sizes given
  std::int64_t message_bytes = std::int64_t{1} << 31;  // SHEAF_MESSAGE_BYTES: longer messages are split
  std::string engine = "auto";                         // SHEAF_ENGINE: auto, shm, c10d or collectives
  std::int64_t pool_bytes = 0;                         // SHEAF_POOL_MB: what results in shared memory may take
  bool is_pool_given = false;                          // its default is the host's, and need not agree

  // "SHEAF_CHECK=0 SHEAF_ENGINE=auto SHEAF_MESSAGE_BYTES=2147483648 SHEAF_POOL_MB=6000"
  std::string text() const;
};

// Throws value_error for a value that means nothing, naming it and what is allowed.
settings read_settings();

}  // namespace sheaf
