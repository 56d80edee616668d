// SPDX-License-Identifier: MIT
// Whether another rank's process lives, asked without waiting for its memory to be torn down.
#pragma once

#include <optional>
#include <string>

#include "shm/descriptor.hpp"

namespace sheaf::shm {

class life {
 public:
  // Of a process in this pid namespace. Throws runtime_error when there is none.
  explicit life(int process);

  // Why it takes part no more; nothing: it does.
  std::optional<std::string> ended() const;
  // Whether it is stopped (SIGSTOP, a debugger).
  bool is_stopped() const;

 private:
  struct state {
    char letter;
    unsigned long flags;
  };
  std::optional<state> read() const;  // nothing: it is gone

  int process_;
  descriptor stat_;  // kept open, it stays with that very process
};

}  // namespace sheaf::shm
