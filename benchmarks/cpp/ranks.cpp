// SPDX-License-Identifier: MIT
#include "ranks.hpp"

#include <fcntl.h>
#include <mpi.h>
#include <sched.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <stdexcept>

#include "shm/bell.hpp"

namespace bench {

// Zeros at first.
struct ranks::gate {
  std::atomic<int> arrived;
  alignas(128) std::atomic<int> opened;
  std::atomic<clock::rep> when;
};

namespace {

constexpr std::size_t gate_bytes = 4096;
constexpr auto patience = std::chrono::seconds(120);

sheaf::shm::descriptor open_file(const std::filesystem::path& path, int flags) {
  sheaf::shm::descriptor file(::open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0600));
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return file;
}

std::filesystem::path make_folder() {
  auto name = (std::filesystem::temp_directory_path() / "sheaf-bench-XXXXXX").string();
  if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make a folder like " + name);
  const auto file = open_file(std::filesystem::path(name) / "gate", O_CREAT);
  if (::ftruncate(file.number(), gate_bytes) != 0) throw std::runtime_error("no room in " + name);
  return name;
}

}  // namespace

ranks::ranks(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &world_);
  std::array<char, 1024> name{};
  if (rank_ == 0) make_folder().string().copy(name.data(), name.size() - 1);
  MPI_Bcast(name.data(), name.size(), MPI_CHAR, 0, MPI_COMM_WORLD);
  folder_ = name.data();
  shared_ = sheaf::shm::mapping(open_file(folder_ / "gate", 0), 0, gate_bytes, sheaf::shm::mapping::kind::shared);
  gate_ = reinterpret_cast<gate*>(shared_.data());
  take_own_cores();
}

ranks::~ranks() {
  MPI_Barrier(MPI_COMM_WORLD);
  std::error_code ignored;
  if (rank_ == 0) std::filesystem::remove_all(folder_, ignored);
  MPI_Finalize();
}

// Where there are enough, each rank and its threads keep to their own, as launchers do.
void ranks::take_own_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  cores_ = CPU_COUNT(&allowed);
  const int each = cores_ / world_;
  if (each == 0) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  for (int cpu = 0, nth = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    if (nth / each == rank_) CPU_SET(cpu, &own);
    ++nth;
  }
  ::sched_setaffinity(0, sizeof own, &own);
}

// Not MPI's barrier: one that never gives way would keep the cores from ranks that still have to come.
ranks::clock::time_point ranks::meet() {
  const int before = gate_->opened.load();
  if (gate_->arrived.fetch_add(1) + 1 == world_) {
    gate_->arrived = 0;
    gate_->when = clock::now().time_since_epoch().count();
    gate_->opened = before + 1;
  }
  const auto enough = clock::now() + patience;
  const bool crowded = world_ > cores_;
  for (int tries = 1; gate_->opened.load() == before; ++tries) {
    if (crowded) ::sched_yield();
    sheaf::shm::relax();
    if (tries % (crowded ? 100 : 10000) != 0) continue;
    // MPI may have left something to do behind a call, and does it only inside of calls.
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    if (clock::now() > enough) throw std::runtime_error("a rank did not come to the meeting");
  }
  return clock::time_point(clock::duration(gate_->when.load()));
}

int ranks::agree(int mine) const {
  MPI_Bcast(&mine, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return mine;
}

void ranks::slowest(std::vector<double>& times) const {
  MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

std::int64_t ranks::sum(std::int64_t mine) const {
  MPI_Allreduce(MPI_IN_PLACE, &mine, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return mine;
}

std::string ranks::mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string all(text.data());
  if (all.starts_with("Open MPI v")) return "Open MPI " + all.substr(10, all.find(',') - 10);
  const auto number = all.find_first_of("0123456789");
  if (all.starts_with("MPICH"))
    return "MPICH " + all.substr(number, all.find_first_not_of("0123456789.", number) - number);
  return "another MPI";
}

}  // namespace bench
