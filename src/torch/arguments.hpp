// SPDX-License-Identifier: MIT
// What ops are told beside their tensors, and the call that it makes.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "core/engine.hpp"
#include "torch/check.hpp"

namespace sheaf {

struct arguments {
  operation op;
  std::string mode = "sum";  // of the gradient: what ranks must agree on
  std::string group;
  std::int64_t world = 1;
  std::optional<double> timeout = std::nullopt;  // seconds
  bool sized = false;
  bool local = false;        // gradients of mode `own` stay on the rank: some ranks may never compute theirs
  std::int64_t origin = 0;   // the call that this one differentiates
  std::int64_t follows = 0;  // so many come after it in the same step of the program's
};

std::optional<double> seconds_of(std::optional<std::chrono::milliseconds> time);
// Of a call from C++ with such options, as far as the options of all have them.
template <class Options>
arguments arguments_of(operation op, const Options& options, bool sized = false) {
  return {.op = op,
          .group = options.group.name(),
          .world = options.group.world(),
          .timeout = seconds_of(options.timeout),
          .sized = sized};
}

// What is wrong with them, on any engine of that many ranks.
refusal check_arguments(const arguments& with, int world);
// The call they make, without what needs a check.
call call_of(const arguments& with);

}  // namespace sheaf
