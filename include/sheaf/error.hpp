// SPDX-License-Identifier: MIT
// What can go wrong, in the words of the core. The torch layer turns these into ValueError,
// torch.distributed.DistBackendError and RuntimeError.
#pragma once

#include <sheaf/export.hpp>
#include <stdexcept>

namespace sheaf {

// A user's mistake: nothing was moved, and the group works on.
class SHEAF_API value_error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// A rank that died, hung up or never came.
class SHEAF_API rank_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A signal (Ctrl-C) ended the wait.
class SHEAF_API interrupted : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace sheaf
