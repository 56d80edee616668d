// SPDX-License-Identifier: MIT
// From a group's name to its engine.
#pragma once

#include <memory>
#include <string>
#include <tuple>

#include "core/engine.hpp"

namespace sheaf {

// Throws value_error when there is no such group.
std::shared_ptr<engine> find_engine(const std::string& group);

// What carries a CPU and a CUDA tensor of the group, and why.
std::tuple<std::string, std::string> describe_engine(const std::string& group);

}  // namespace sheaf
