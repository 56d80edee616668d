// SPDX-License-Identifier: MIT
// mpirun -n 4 against_mpi [--json OUT] [--seconds 1] [--calls 8] [--only all_gather] [--skews even] [--bytes 256,4096]
// Sheaf's shared-memory engine beside the MPI that started these ranks; rank 0 prints the tables.
#include <mpi.h>

#include <fstream>
#include <iostream>

#include "collectives.hpp"
#include "group.hpp"
#include "report.hpp"
#include "threads.hpp"

namespace {

// Whether all results were right.
bool run(bench::ranks& all, const bench::options& with) {
  const int threads = std::max(1, all.cores() / all.world());
  bench::install_threads(threads);
  const auto engine = bench::make_engine(all);
  bench::run_of found{bench::ranks::mpi_version(), all.world(), all.cores(), threads, {}};
  const auto cases = bench::cases_of(with, all.world());
  std::int64_t wrong = 0;
  for (const auto& one : cases) {
    if (all.rank() == 0) {
      std::cerr << found.mpi << ", W = " << all.world() << ", case " << found.outcomes.size() + 1 << " of "
                << cases.size() << ": " << one.collective << ", " << bench::size_text(one.bytes) << ", " << one.skew
                << std::endl;
    }
    const bench::setting setting{all, *engine, bench::layout_of(one, all.world()), bench::calls_of(one, with)};
    const auto what =
        one.collective == "all_gather" ? bench::make_all_gather(setting) : bench::make_reduce_scatter(setting);
    found.outcomes.push_back(bench::measure(one, *what, all, with, found.outcomes));
    for (const auto& each : found.outcomes.back().timings) wrong += each.wrong;
  }
  if (all.rank() == 0) {
    bench::print_tables(std::cout, found);
    if (!with.json.empty()) {
      std::ofstream file(with.json);
      bench::write_json(file, found);
    }
  }
  return wrong == 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::ranks all(argc, argv);
  try {
    return run(all, bench::options_from({argv + 1, argv + argc})) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "rank " << all.rank() << ": " << error.what() << std::endl;
    std::error_code ignored;
    std::filesystem::remove_all(all.folder(), ignored);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  return 2;
}
