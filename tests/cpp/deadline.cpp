// SPDX-License-Identifier: MIT
// A rank that comes late, or is in another call where nobody compares: an error that names it, and a group that goes
// on.
#include <chrono>
#include <thread>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

constexpr auto patience = 1000ms;
constexpr auto lateness = 2500ms;  // beyond the others' patience, with room for their search for its note
constexpr auto far_below_the_groups_timeout = 20s;

void expect_works(const group& me) {
  const ragged now{.sizes = extents(me.world(), 3), .seed = 7};
  expect_equal(all_gather(now.block(me.rank()), {.group = me}).tensor, now.gathered(), "the next gather");
}

// The last rank comes when the others have given up. Returns whether this rank is the late one.
template <class Call>
bool expect_late(const group& me, Call&& call) {
  const int late = me.world() - 1;
  if (me.rank() == late) {
    std::this_thread::sleep_for(lateness);
    return true;
  }
  const auto begun = clock::now();
  const auto text = error_of<c10::DistBackendError>(call, "a call without its last rank");
  expect(clock::now() - begun < far_below_the_groups_timeout, "it ends at the call's own deadline");
  expect_contains(text, "no answer from rank " + std::to_string(late) + " within 1 s");
  expect_contains(text, "This rank is in ");
  return false;
}

// What the others posted stays posted: the late rank has all it needs, and nobody waits for what it sends.
void late_for_a_gather(const group& me) {
  if (me.world() == 1) return;
  const ragged now{.sizes = extents(me.world(), 2)};
  const auto gather = [&] { return all_gather(now.block(me.rank()), {.group = me, .timeout = patience}).tensor; };
  if (expect_late(me, gather)) expect_equal(gather(), now.gathered(), "the late rank's gather");
  expect_works(me);
}

void late_with_sizes_given(const group& me) {
  if (me.world() == 1) return;
  if (headers_are_compared(me)) return;  // then it is late for headers
  expect_works(me);                      // a group's very first call compares settings before it sends large blocks
  const ragged now{.sizes = extents(me.world(), 2), .shape = {0, 3000}};
  const auto gather = [&] {
    return all_gather(now.block(me.rank()), {.sizes = now.sizes_tensor(), .group = me, .timeout = patience}).tensor;
  };
  if (expect_late(me, gather)) expect_equal(gather(), now.gathered(), "the late rank's gather");
  expect_works(me);
}

// The others never came to send their blocks: the late rank ends at its own deadline, or at once where it sees that
// they left.
void late_for_a_long_gather(const group& me) {
  if (me.world() == 1) return;
  const ragged now{.sizes = extents(me.world(), 2), .shape = {0, 30000}};  // too long to ride along anywhere
  const auto gather = [&] { all_gather(now.block(me.rank()), {.group = me, .timeout = patience}); };
  if (expect_late(me, gather)) {
    const auto text = error_of<c10::DistBackendError>(gather, "the late rank's gather");
    expect_contains(text, is_shared(me) ? "left this call" : "no answer from rank");
  }
  expect_works(me);
}

void late_for_a_backward(const group& me) {
  if (me.world() == 1) return;
  const ragged now{.sizes = extents(me.world(), 2)};
  const auto x = leaf(now.block(me.rank()));
  const auto y = all_gather(x, {.group = me, .timeout = patience}).tensor;
  const auto backward = [&] { return grad_of(y, x, now.whole(me.rank())); };
  if (expect_late(me, backward)) {
    expect_equal(backward(), now.rows_of(now.summed(), me.rank()), "the late rank's gradient");
  }
  expect_works(me);
}

// Sizes are given and blocks are large, so nobody compares: calls that disagree must not match, and must not become
// garbage.
void calls_that_disagree_never_match(const group& me) {
  if (me.world() == 1) return;
  if (headers_are_compared(me)) return;  // then they are compared
  const auto sizes = at::full({me.world()}, 2, at::kLong);
  const bool odd = me.rank() == 0;
  const auto sized = [&](const at::Tensor& x, std::int64_t dim) {
    return [&me, &sizes, x, dim] { all_gather(x, {.dim = dim, .sizes = sizes, .group = me, .timeout = patience}); };
  };
  const auto x = at::ones({2, 2, 3000});  // too large to ride along with a header
  // The same number of bytes each time, so that only the call itself tells them apart.
  error_of<c10::DistBackendError>(sized(odd ? x.to(at::kInt) : x, 0), "another dtype");
  error_of<c10::DistBackendError>(sized(x, odd ? 1 : 0), "another dim");
  error_of<c10::DistBackendError>(sized(odd ? at::ones({2, 2, 3000, 1}) : x, 0), "another shape");
  const auto text = error_of<c10::DistBackendError>(
      [&] {
        if (!odd) return sized(x, 0)();
        reduce_scatter(at::ones({2 * me.world(), 2, 3000}), sizes, {.group = me, .timeout = patience});
      },
      "another op");
  expect_contains(text, "no answer from rank");
  expect_works(me);
}

}  // namespace

case_list deadline_cases() {
  return {{"deadline/late_for_a_gather", late_for_a_gather},
          {"deadline/late_with_sizes_given", late_with_sizes_given},
          {"deadline/late_for_a_long_gather", late_for_a_long_gather},
          {"deadline/late_for_a_backward", late_for_a_backward},
          {"deadline/calls_that_disagree_never_match", calls_that_disagree_never_match}};
}

}  // namespace sheaf::test
