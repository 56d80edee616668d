// SPDX-License-Identifier: MIT
// The timing engine: all candidates of a case in the same processes, in turn, round after round.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cases.hpp"
#include "ranks.hpp"

namespace bench {

// One way to do a collective.
class candidate {
 public:
  explicit candidate(std::string name) : name_(std::move(name)) {}
  virtual ~candidate() = default;
  const std::string& name() const { return name_; }

  virtual void call(int number) = 0;  // on the input of that number
  virtual std::span<const std::byte> result(int number) const = 0;
  virtual void release() {}                            // results that are not the caller's
  virtual bool has_rank_data() const { return true; }  // else nothing is checked: no other rank takes part

 private:
  std::string name_;
};

// One collective in one case: its inputs, its truth, and the ways to do it.
class collective {
 public:
  virtual ~collective() = default;
  virtual void prepare(int number, std::uint64_t salt) = 0;
  virtual std::int64_t count_wrong(std::span<const std::byte> result, std::uint64_t salt) const = 0;
  std::vector<std::unique_ptr<candidate>> candidates;  // Sheaf's own first
};

// Medians over the rounds of the slowest rank, in microseconds a call: of the call alone, and with one full read of the
// result and its release.
struct timing {
  std::string name;
  double call_us = 0;
  double total_us = 0;
  std::int64_t wrong = 0;  // elements, over all rounds and ranks
};

struct outcome {
  one_case of;
  int rounds = 0;
  int calls = 1;
  std::vector<timing> timings;
};

int calls_of(const one_case& one, const options& with);
// A candidate that would take too long, as `before` lets expect (results of this run on smaller tensors), is left out.
outcome measure(const one_case& one, collective& what, ranks& all, const options& with,
                const std::vector<outcome>& before);

}  // namespace bench
