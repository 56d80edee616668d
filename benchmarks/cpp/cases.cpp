// SPDX-License-Identifier: MIT
#include "cases.hpp"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace bench {
namespace {

std::vector<std::int64_t> share(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> each;
  for (int rank = 0; rank < ranks; ++rank) each.push_back(rows / ranks + (rank < rows % ranks));
  return each;
}

// The heavy rank is the last, never the root of anybody's tree.
std::vector<std::int64_t> sizes_of(const std::string& skew, int world, std::int64_t rows) {
  if (skew == "even") return share(rows, world);
  const bool doubled = skew == "2";
  const auto heavy = doubled ? std::min(rows, 2 * rows / world) : rows - world + 1;
  auto sizes = share(rows - heavy, world - 1);
  sizes.push_back(heavy);
  return sizes;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

std::vector<std::string> chosen(const std::string& name, const std::string& text, const std::vector<std::string>& all) {
  auto words = words_of(text);
  for (const auto& word : words) {
    if (std::find(all.begin(), all.end(), word) != all.end()) continue;
    const auto allowed = std::accumulate(std::next(all.begin()), all.end(), all[0],
                                         [](const auto& so_far, const auto& next) { return so_far + ", " + next; });
    throw std::invalid_argument(name + " takes " + allowed + ", got " + word);
  }
  return words;
}

}  // namespace

std::int64_t row_bytes(std::int64_t bytes) { return bytes <= (4 << 10) ? 16 : 256; }

sheaf::layout layout_of(const one_case& one, int world) {
  const auto row = row_bytes(one.bytes);
  const std::vector<std::int64_t> shape{one.bytes / row, row / 4};
  return sheaf::make_layout(shape, 0, sizes_of(one.skew, world, one.bytes / row), 4);
}

options options_from(const std::vector<std::string>& arguments) {
  options result;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const auto& name = arguments[i];
    if (i + 1 == arguments.size()) throw std::invalid_argument(name + " needs a value");
    const auto& text = arguments[i + 1];
    if (name == "--json") {
      result.json = text;
    } else if (name == "--seconds") {
      result.seconds = std::stod(text);
    } else if (name == "--calls") {
      result.calls = std::max(1, std::stoi(text));
    } else if (name == "--only") {
      result.collectives = chosen(name, text, result.collectives);
    } else if (name == "--skews") {
      result.skews = chosen(name, text, result.skews);
    } else if (name == "--bytes") {
      result.bytes.clear();
      for (const auto& word : words_of(text)) result.bytes.push_back(std::stoll(word));
    } else {
      throw std::invalid_argument("expected --json, --seconds, --calls, --only, --skews or --bytes, got " + name);
    }
  }
  return result;
}

std::vector<one_case> cases_of(const options& with, int world) {
  std::vector<one_case> cases;
  for (const auto& collective : with.collectives) {
    for (const auto bytes : with.bytes) {
      // The heavy rows take one row of every other rank, and MPI counts in int.
      if (bytes < world * row_bytes(bytes) || bytes % row_bytes(bytes) != 0 || bytes > INT32_MAX) {
        throw std::invalid_argument("--bytes " + std::to_string(bytes) + " is no number of rows for " +
                                    std::to_string(world) + " ranks, or 2 GiB and more");
      }
      for (const auto& skew : with.skews) {
        if (skew != "2" || world > 2) cases.push_back({collective, bytes, skew});  // at W = 2 it is everything on one
      }
    }
  }
  return cases;
}

}  // namespace bench
