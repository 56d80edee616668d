// SPDX-License-Identifier: MIT
// What the ranks of a group tell each other outside of calls, for errors: a text each, that all can read.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

namespace sheaf {

class notices {
 public:
  virtual ~notices() = default;
  virtual std::string name() const = 0;                   // the group's
  virtual std::chrono::milliseconds timeout() const = 0;  // the group's

  // A text under this process's name that other ranks can read, of whatever group; for errors at a deadline. Neither
  // throws.
  virtual void publish(const std::string& text) noexcept = 0;
  virtual std::optional<std::string> published(int rank) noexcept = 0;
  // Whether what this rank last published is about a call that is not finished.
  std::atomic<bool> owes_news{false};
};

}  // namespace sheaf
