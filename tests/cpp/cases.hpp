// SPDX-License-Identifier: MIT
// Cases that hold on every group, whatever carries it: each rank computes the truth by itself and throws where the
// library says otherwise. One runner makes the ranks threads, another loads this from processes that share a group.
#pragma once

#include <ostream>
#include <sheaf/export.hpp>
#include <sheaf/group.hpp>
#include <string>
#include <vector>

namespace sheaf::test {

struct test_case {
  const char* name;
  void (*body)(const group& me);
};

// What GoogleTest shows of a case.
inline void PrintTo(const test_case& one, std::ostream* stream) { *stream << one.name; }

using case_list = std::vector<test_case>;

case_list all_gather_cases();
case_list reduce_scatter_cases();
case_list async_cases();
case_list async_coalesced_cases();
case_list gather_sizes_cases();
case_list valid_cases();
case_list coalesced_cases();
case_list group_cases();
case_list layout_cases();
case_list gradient_cases();
case_list second_derivative_cases();
case_list dtype_cases();
case_list random_cases();
case_list disagreement_cases();
case_list refusal_cases();
case_list deadline_cases();
case_list nn_cases();
case_list compat_cases();

SHEAF_API const case_list& all_cases();

// A hash of what the sums of every dtype give on all ranks: two engines that agree on it agree on every bit.
SHEAF_API std::string digest_of_sums(const group& me);

}  // namespace sheaf::test
