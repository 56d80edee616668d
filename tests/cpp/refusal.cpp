// SPDX-License-Identifier: MIT
// One rank sees a mistake of its own. All raise the same text: the others hear it in its header, or, where calls come
// without one, while they wait for its data. The group goes on.
#include <chrono>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

using namespace std::chrono_literals;

void expect_works(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  expect_equal(all_gather(now.block(me.rank()), {.group = me}).tensor, now.gathered(), "the gather afterwards");
  const auto mine = reduce_scatter(now.whole(me.rank()), now.sizes_tensor(), {.group = me});
  expect_equal(mine, now.rows_of(now.summed(), me.rank()), "the reduction afterwards");
}

// Each rank in turn gathers `bad`, and sums it.
void expect_refused(const group& me, const at::Tensor& bad, std::int64_t dim, const std::string& why) {
  const auto sizes = at::full({me.world()}, 2, at::kLong);
  for (int chosen = 0; chosen < me.world() && me.world() > 1; ++chosen) {
    const bool mine = me.rank() == chosen;
    const auto along = mine ? dim : 0;
    const auto gather = [&] { all_gather(mine ? bad : at::ones({2, 3}), {.dim = along, .group = me}); };
    const auto reduce = [&] {
      reduce_scatter(mine ? bad : at::ones({2 * me.world(), 3}), sizes, {.dim = along, .group = me});
    };
    for (const auto& text : {error_of<c10::ValueError>(gather, why), error_of<c10::ValueError>(reduce, why)}) {
      expect_contains(text, "rank " + std::to_string(chosen) + " refuses: ");
      expect_contains(text, why);
      expect_same_everywhere(me, text);
    }
  }
  expect_works(me);
}

void zero_dims(const group& me) { expect_refused(me, at::scalar_tensor(1), 0, "reshape(1)"); }

void too_many_dims(const group& me) { expect_refused(me, at::ones({1, 1, 1, 1, 1, 1, 1, 1, 1}), 0, "at most 8 dims"); }

void dim_out_of_range(const group& me) {
  expect_refused(me, at::ones({2, 3}), 2, "dim must be from -2 to 1, got 2");
  expect_refused(me, at::ones({2, 3}), -3, "dim must be from -2 to 1, got -3");
}

void sparse(const group& me) { expect_refused(me, at::ones({2, 3}).to_sparse(), 0, "sparse tensors are not taken"); }

void quantized(const group& me) {
  expect_refused(me, at::quantize_per_tensor(at::ones({2, 3}), 0.1, 0, at::kQInt8), 0, "quantized tensors");
}

void meta(const group& me) { expect_refused(me, at::ones({2, 3}, at::kMeta), 0, "meta tensors hold no data"); }

void gather_sizes_of_a_number(const group& me) {
  for (int chosen = 0; chosen < me.world() && me.world() > 1; ++chosen) {
    const auto x = me.rank() == chosen ? at::scalar_tensor(1) : at::ones({2});
    const auto text = error_of<c10::ValueError>([&] { gather_sizes(x, {.group = me}); }, "gather_sizes");
    expect_contains(text, "rank " + std::to_string(chosen) + " refuses: ");
    expect_same_everywhere(me, text);
  }
}

// Rows this wide are too large to ride along with a header: with sizes given, there is none.
constexpr std::int64_t wide = 3000;
constexpr std::int64_t slim = 3;

// The last rank alone has it wrong. The others hear it in its header, or while they wait for its data.
template <class Wrong, class Right>
void expect_refused_with_sizes(const group& me, const std::string& why, Wrong&& wrong, Right&& right) {
  if (me.world() == 1) return;
  const int chosen = me.world() - 1;
  const auto text = error_of<c10::ValueError>([&] { me.rank() == chosen ? wrong() : right(); }, why);
  expect_contains(text, "rank " + std::to_string(chosen) + " refuses: ");
  expect_contains(text, why);
  expect_same_everywhere(me, text);
  expect_works(me);
}

void wrong_sizes_of_a_gather(const group& me, std::int64_t columns) {
  const int world = me.world();
  const auto timeout = 20s;
  const auto gather = [&](const at::Tensor& sizes) {
    return [&, sizes] { all_gather(at::ones({2, columns}), {.sizes = sizes, .group = me, .timeout = timeout}); };
  };
  const auto right = gather(at::full({world}, 2, at::kLong));
  auto negative = at::full({world}, 2, at::kLong);
  negative[0] = -2;
  expect_refused_with_sizes(me, "one per rank, got " + std::to_string(world + 1),
                            gather(at::full({world + 1}, 2, at::kLong)), right);
  expect_refused_with_sizes(me, "must not be negative", gather(negative), right);
  expect_refused_with_sizes(me, "this rank 3 rows, but it has 2", gather(at::full({world}, 3, at::kLong)), right);
}

void wrong_sizes_of_a_reduction(const group& me, std::int64_t columns) {
  const int world = me.world();
  const auto timeout = 20s;
  const auto reduce = [&](const at::Tensor& y, const at::Tensor& sizes, reduce_op op) {
    return [&, y, sizes, op] { reduce_scatter(y, sizes, {.op = op, .group = me, .timeout = timeout}); };
  };
  const auto y = at::ones({2 * world, columns});
  const auto sizes = at::full({world}, 2, at::kLong);
  const auto right = reduce(y, sizes, reduce_op::sum);
  expect_refused_with_sizes(me, "one per rank, got 1", reduce(y, sizes.narrow(0, 0, 1), reduce_op::sum), right);
  expect_refused_with_sizes(me, "add up to " + std::to_string(3 * world), reduce(y, sizes + 1, reduce_op::sum), right);
  expect_refused_with_sizes(me, "bool tensors have no sum", reduce(y.to(at::kBool), sizes, reduce_op::sum), right);
  expect_refused_with_sizes(me, "no mean", reduce(y.to(at::kInt), sizes, reduce_op::mean), right);
}

// A group of one, too, refuses what any rank can see.
void timeout_that_is_none_alone(const group& me) {
  if (me.world() > 1) return;
  const auto x = at::ones({2});
  const auto two = at::full({1}, 2, at::kLong);
  const auto refused = [&](const auto& body) {
    expect_contains(error_of<c10::ValueError>(body, "a negative timeout"), "timeout must be a positive number");
  };
  refused([&] { all_gather(x, {.group = me, .timeout = -1ms}); });
  refused([&] { gather_sizes(x, {.group = me, .timeout = -1ms}); });
  refused([&] { reduce_scatter(x, two, {.group = me, .timeout = -1ms}); });
  refused([&] { all_gather_coalesced({x}, {.group = me, .timeout = -1ms}); });
  refused([&] { reduce_scatter_coalesced({x}, two, {.group = me, .timeout = -1ms}); });
}

void split_by_negative_sizes(const group&) {
  const auto split_it = [] { split(at::ones({5}), at::tensor({7, -2}, at::kLong)); };
  expect_contains(error_of<c10::ValueError>(split_it, "split"), "sizes must not be negative, got [7, -2]");
}

void timeout_that_is_none(const group& me) {
  if (me.world() == 1) return;
  const auto gather = [&] {
    const auto timeout = me.rank() == 0 ? std::optional(-1ms) : std::nullopt;
    all_gather(at::ones({2}), {.group = me, .timeout = timeout});
  };
  const auto text = error_of<c10::ValueError>(gather, "a negative timeout");
  expect_contains(text, "timeout must be a positive number of seconds");
  expect_same_everywhere(me, text);
}

}  // namespace

case_list refusal_cases() {
  return {{"refusal/zero_dims", zero_dims},
          {"refusal/too_many_dims", too_many_dims},
          {"refusal/dim_out_of_range", dim_out_of_range},
          {"refusal/sparse", sparse},
          {"refusal/quantized", quantized},
          {"refusal/meta", meta},
          {"refusal/gather_sizes_of_a_number", gather_sizes_of_a_number},
          {"refusal/wrong_sizes_of_a_small_gather", [](const group& me) { wrong_sizes_of_a_gather(me, slim); }},
          {"refusal/wrong_sizes_of_a_gather", [](const group& me) { wrong_sizes_of_a_gather(me, wide); }},
          {"refusal/wrong_sizes_of_a_small_reduction", [](const group& me) { wrong_sizes_of_a_reduction(me, slim); }},
          {"refusal/wrong_sizes_of_a_reduction", [](const group& me) { wrong_sizes_of_a_reduction(me, wide); }},
          {"refusal/timeout_that_is_none", timeout_that_is_none},
          {"refusal/timeout_that_is_none_alone", timeout_that_is_none_alone},
          {"refusal/split_by_negative_sizes", split_by_negative_sizes}};
}

}  // namespace sheaf::test
