// SPDX-License-Identifier: MIT
#include "timing.hpp"

#include <algorithm>
#include <chrono>

#include "pattern.hpp"

namespace bench {
namespace {

using clock = ranks::clock;

constexpr std::int64_t small_bytes = 64 << 10;
constexpr int fewest_rounds = 3;
constexpr int most_rounds = 101;
constexpr double longest_call_us = 10e6;

double us_between(clock::time_point from, clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct sample {
  double call_us;
  double total_us;
  std::int64_t wrong;
};

// `salt` is another one for every call of the whole run.
sample time_once(collective& what, candidate& way, ranks& all, int calls, std::uint64_t& salt) {
  const auto first = salt;
  salt += calls;
  for (int i = 0; i < calls; ++i) what.prepare(i, first + i);
  // From the moment that lets all ranks go: a rank that waits for a core is part of the time.
  const auto start = all.meet();
  for (int i = 0; i < calls; ++i) way.call(i);
  const auto called = clock::now();
  for (int i = 0; i < calls; ++i) read_all(way.result(i));
  const auto read = clock::now();
  all.meet();  // nobody's checks take the cores from a rank whose clock runs
  std::int64_t wrong = 0;
  for (int i = 0; way.has_rank_data() && i < calls; ++i) wrong += what.count_wrong(way.result(i), first + i);
  all.meet();
  const auto checked = clock::now();
  way.release();
  const auto total = us_between(start, read) + us_between(checked, clock::now());
  return {us_between(start, called) / calls, total / calls, wrong};
}

// As many as the time of one allows, an odd number: then the median is one of them.
int rounds_within(double seconds, double round_seconds) {
  if (round_seconds > 5 * seconds) return 1;
  const auto fit = static_cast<int>(std::min(seconds / round_seconds, double{most_rounds}));
  return std::max(fewest_rounds, fit) | 1;
}

// From the next smaller tensor of the same kind, and so the same on every rank. Small calls tell nothing: what they
// take is not moving bytes.
bool is_too_slow(const candidate& way, const one_case& one, const std::vector<outcome>& before) {
  double expected_us = 0;
  std::int64_t nearest = small_bytes;
  for (const auto& earlier : before) {
    const bool alike = earlier.of.collective == one.collective && earlier.of.skew == one.skew;
    if (!alike || earlier.of.bytes <= nearest || earlier.of.bytes >= one.bytes) continue;
    nearest = earlier.of.bytes;
    expected_us = 2 * longest_call_us;  // unless it took part there
    for (const auto& each : earlier.timings) {
      if (each.name != way.name()) continue;
      expected_us = each.call_us * static_cast<double>(one.bytes) / static_cast<double>(nearest);
    }
  }
  return expected_us > longest_call_us;
}

}  // namespace

int calls_of(const one_case& one, const options& with) { return one.bytes <= small_bytes ? with.calls : 1; }

outcome measure(const one_case& one, collective& what, ranks& all, const options& with,
                const std::vector<outcome>& before) {
  static std::uint64_t salt = 1;
  std::erase_if(what.candidates, [&](const auto& way) { return is_too_slow(*way, one, before); });
  const int calls = calls_of(one, with);
  const auto ways = what.candidates.size();
  std::vector<std::vector<double>> called(ways), total(ways);
  std::vector<std::int64_t> wrong(ways, 0);
  const auto round = [&](int number) {
    for (std::size_t turn = 0; turn < ways; ++turn) {
      const auto way = (turn + number) % ways;  // every round begins with another one
      const auto got = time_once(what, *what.candidates[way], all, calls, salt);
      called[way].push_back(got.call_us);
      total[way].push_back(got.total_us);
      wrong[way] += got.wrong;
    }
  };

  const auto seconds_of_round = [&](int number) {
    const auto start = clock::now();
    round(number);
    return us_between(start, clock::now()) / 1e6;
  };

  // The first one warms up. The next tells how long a round takes, unless that is clear by then.
  auto seconds = seconds_of_round(0);
  if (all.agree(seconds < with.seconds)) seconds = seconds_of_round(1);
  const auto rounds = all.agree(rounds_within(with.seconds, seconds));
  for (std::size_t way = 0; way < ways; ++way) called[way].clear(), total[way].clear();
  for (int i = 0; i < rounds; ++i) round(i);

  outcome result{one, rounds, calls, {}};
  for (std::size_t way = 0; way < ways; ++way) {
    all.slowest(called[way]);
    all.slowest(total[way]);
    result.timings.push_back(
        {what.candidates[way]->name(), median_of(called[way]), median_of(total[way]), all.sum(wrong[way])});
  }
  return result;
}

}  // namespace bench
