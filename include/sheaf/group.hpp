// SPDX-License-Identifier: MIT
// Who takes part: a group of ranks by its name, as the ops know it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <sheaf/export.hpp>
#include <string>
#include <vector>

namespace sheaf {

class SHEAF_API group {
 public:
  // The default process group, or this process alone where there is none; asked at each call.
  group() = default;
  // A c10d group of this process, by its name ("0" is the default group).
  static group named(std::string name);
  // The processes that a launcher started, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them: a
  // group that needs no Python. They must be on one host. Waits for all of them; every process calls it equally often.
  static group from_env(std::chrono::milliseconds timeout = std::chrono::minutes(5));
  // Ranks as threads of this process: result[r] is rank r's, to be used by one thread. They live as long as any of
  // them does.
  static std::vector<group> threads(int world, std::chrono::milliseconds timeout = std::chrono::minutes(1));

  // What the ops take as their group; "" is this process alone.
  std::string name() const;
  int rank() const;
  int world() const;
  // What carries a CPU and a CUDA tensor of this group, and why. Never communicates: before the group's first call,
  // which settles it, it says what there is to choose from.
  std::string engine() const;

 private:
  explicit group(std::string name, std::shared_ptr<void> alive = {});

  std::string name_;
  bool is_default_ = true;
  std::shared_ptr<void> alive_;
};

// Runs body(group) as every rank of a group of threads, and rethrows the first error of the lowest rank that has one.
SHEAF_API void spawn(int world, const std::function<void(const group&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::minutes(1));

}  // namespace sheaf
