// SPDX-License-Identifier: MIT
// Sheaf's shared-memory engine for the ranks that mpirun started.
#pragma once

#include <memory>

#include "ranks.hpp"
#include "shm/engine.hpp"

namespace bench {

// Throws runtime_error where these ranks cannot share memory.
std::shared_ptr<sheaf::engine> make_engine(const ranks& all);

}  // namespace bench
