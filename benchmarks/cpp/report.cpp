// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <iomanip>
#include <optional>
#include <sstream>

namespace bench {
namespace {

// Nothing: it was left out.
std::optional<timing> find(const outcome& one, const std::string& name) {
  for (const auto& each : one.timings) {
    if (each.name == name) return each;
  }
  return std::nullopt;
}

std::string rounded(double value, int digits) {
  std::ostringstream text;
  text << std::setprecision(digits) << std::fixed << value;
  return text.str();
}

std::string time_text(const std::optional<timing>& of) { return of ? rounded(of->total_us, 1) : "-"; }

std::string ratio_text(const std::optional<timing>& of, const std::optional<timing>& to) {
  return of && to ? rounded(of->total_us / to->total_us, 2) : "-";
}

// One table for each way of Sheaf's.
void print_table(std::ostream& out, const run_of& all, const std::string& collective, const std::string& name) {
  out << "\n"
      << collective << ": " << name << ", beside " << all.mpi << ", with one full read; W = " << all.world << ", "
      << all.cores << " cores, " << all.threads << " threads a rank\n"
      << std::left << std::setw(10) << "N" << std::setw(11) << "skew" << std::right << std::setw(7) << "rounds"
      << std::setw(13) << "sheaf us" << std::setw(13) << "MPI us" << std::setw(13) << "memcpy us" << std::setw(8)
      << "/MPI" << std::setw(9) << "/memcpy" << "  correct\n";
  for (const auto& one : all.outcomes) {
    if (one.of.collective != collective) continue;
    const auto sheaf = find(one, name), mpi = find(one, "mpi"), copy = find(one, "memcpy");
    const bool wrong = (sheaf && sheaf->wrong > 0) || (mpi && mpi->wrong > 0);
    out << std::left << std::setw(10) << size_text(one.of.bytes) << std::setw(11) << one.of.skew << std::right
        << std::setw(7) << one.rounds << std::setw(13) << time_text(sheaf) << std::setw(13) << time_text(mpi)
        << std::setw(13) << time_text(copy) << std::setw(8) << ratio_text(mpi, sheaf) << std::setw(9)
        << ratio_text(copy, sheaf) << (wrong ? "  WRONG" : "  all") << "\n";
  }
}

void write_outcome(std::ostream& out, const outcome& one) {
  out << R"({"collective": ")" << one.of.collective << R"(", "bytes": )" << one.of.bytes << R"(, "skew": ")"
      << one.of.skew << R"(", "rounds": )" << one.rounds << R"(, "calls": )" << one.calls << R"(, "timings": {)";
  const char* between = "";
  for (const auto& each : one.timings) {
    out << between << '"' << each.name << R"(": {"call_us": )" << rounded(each.call_us, 3) << R"(, "total_us": )"
        << rounded(each.total_us, 3) << R"(, "wrong": )" << each.wrong << "}";
    between = ", ";
  }
  out << "}}";
}

}  // namespace

std::string size_text(std::int64_t bytes) {
  if (bytes >= 1 << 20) return std::to_string(bytes >> 20) + " MiB";
  return bytes >= 1 << 10 ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes) + " B";
}

void print_tables(std::ostream& out, const run_of& all) {
  std::vector<std::pair<std::string, std::string>> tables;
  for (const auto& one : all.outcomes) {
    for (const auto& each : one.timings) {
      const std::pair table(one.of.collective, each.name);
      if (!each.name.starts_with("sheaf") || std::count(tables.begin(), tables.end(), table) > 0) continue;
      tables.push_back(table);
    }
  }
  for (const auto& [collective, name] : tables) print_table(out, all, collective, name);
}

void write_json(std::ostream& out, const run_of& all) {
  out << R"({"mpi": ")" << all.mpi << R"(", "world": )" << all.world << R"(, "cores": )" << all.cores
      << R"(, "threads": )" << all.threads << ",\n \"results\": [";
  const char* between = "\n  ";
  for (const auto& one : all.outcomes) {
    out << between;
    write_outcome(out, one);
    between = ",\n  ";
  }
  out << "\n ]}\n";
}

}  // namespace bench
