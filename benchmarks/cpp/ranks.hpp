// SPDX-License-Identifier: MIT
// The ranks that mpirun started: what they agree on, where they meet before the clock starts, and their cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "shm/mapping.hpp"

namespace bench {

class ranks {
 public:
  ranks(int argc, char** argv);
  ~ranks();
  ranks(const ranks&) = delete;
  ranks& operator=(const ranks&) = delete;

  int rank() const { return rank_; }
  int world() const { return world_; }
  int cores() const { return cores_; }                             // of the machine, for all ranks
  const std::filesystem::path& folder() const { return folder_; }  // of this run, seen by all, removed with it

  using clock = std::chrono::steady_clock;  // the same for all processes of a host
  // In shared memory: lets all go within a microsecond where each has its core. Returns when it did.
  clock::time_point meet();
  int agree(int mine) const;                       // on rank 0's
  void slowest(std::vector<double>& times) const;  // of all ranks, each
  std::int64_t sum(std::int64_t mine) const;
  static std::string mpi_version();  // "Open MPI 4.1.4", "MPICH 4.0.2"

 private:
  struct gate;
  void take_own_cores();

  int rank_ = 0;
  int world_ = 1;
  int cores_ = 1;
  std::filesystem::path folder_;
  sheaf::shm::mapping shared_;
  gate* gate_ = nullptr;
};

}  // namespace bench
