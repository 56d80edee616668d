// SPDX-License-Identifier: MIT
#include "torch/arguments.hpp"

#include <cmath>
#include <sheaf/error.hpp>

namespace sheaf {
namespace {

std::optional<std::chrono::milliseconds> timeout_from(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(*seconds * 1000)));
}

bool may_follow(std::int64_t calls) { return calls >= 0 && calls <= most_follow; }

}  // namespace

std::optional<double> seconds_of(std::optional<std::chrono::milliseconds> time) {
  return time ? std::optional(std::chrono::duration<double>(*time).count()) : std::nullopt;
}

refusal check_arguments(const arguments& with, int world) {
  try {
    gradient_from(with.mode);
  } catch (const value_error& error) {
    return error.what();
  }
  if (auto why = check_timeout(with.timeout)) return why;
  if (!may_follow(with.follows)) {
    return "from 0 to " + std::to_string(most_follow) + " calls may follow, got " + std::to_string(with.follows);
  }
  if (with.world == world) return std::nullopt;
  return "world is " + std::to_string(with.world) + ", but the group has " + std::to_string(world) + " ranks";
}

call call_of(const arguments& with) {
  call now;
  now.head.op = with.op;
  now.head.sized = with.sized;
  now.head.origin = static_cast<std::uint64_t>(with.origin);
  if (may_follow(with.follows)) now.head.follows = static_cast<std::uint8_t>(with.follows);
  if (!check_timeout(with.timeout)) now.timeout = timeout_from(with.timeout);
  return now;
}

}  // namespace sheaf
