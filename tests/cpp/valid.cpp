// SPDX-License-Identifier: MIT
// all_gather with `valid`: buffers of fixed rows, of which a count says how many are valid.
#include <c10/core/InferenceMode.h>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

constexpr std::int64_t capacity = 4;

at::Tensor with_zeros(const at::Tensor& x, std::int64_t dim, std::int64_t rows) {
  auto shape = x.sizes().vec();
  shape[dim < 0 ? dim + x.dim() : dim] = rows - x.size(dim);
  return at::cat({x, at::zeros(shape, x.options())}, dim);
}

std::vector<extents> count_patterns(int world) {
  extents some(world), first(world, 0);
  for (int rank = 0; rank < world; ++rank) some[rank] = (2 * rank + 3) % (capacity + 1);
  first[0] = capacity;
  return {some, extents(world, capacity), extents(world, 0), first};
}

at::Tensor count_of(std::int64_t rows) { return at::full({}, rows, there(at::kLong)); }

void values_and_gradients(const group& me) {
  const auto total = capacity * me.world();
  for (const auto& counts : count_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, -1}) {
      for (const auto mode : all_modes) {
        const ragged full{.sizes = extents(me.world(), capacity), .dim = dim}, now{.sizes = counts, .dim = dim};
        std::vector<at::Tensor> valid;
        for (int rank = 0; rank < me.world(); ++rank) valid.push_back(full.block(rank).narrow(dim, 0, counts[rank]));
        const auto x = leaf(full.block(me.rank()));
        const auto [y, sizes] =
            all_gather(x, {.dim = dim, .grad = mode, .group = me, .valid = count_of(counts[me.rank()])});
        expect_equal(y, with_zeros(at::cat(valid, dim), dim, total), "value, " + now.text());
        expect_equal(sizes, now.sizes_tensor(), "sizes, " + now.text());
        const auto summed = mode == gradient::own    ? full.whole(me.rank())
                            : mode == gradient::mean ? full.averaged()
                                                     : full.summed();
        const auto own = now.rows_of(summed.narrow(dim, 0, now.rows()), me.rank());
        expect_equal(grad_of(y, x, full.whole(me.rank())), with_zeros(own, dim, capacity), "gradient, " + now.text());
      }
    }
  }
}

// Types that torch cannot index go by the same way, and back.
void other_types(const group& me) {
  const auto options = there(at::kFloat8_e5m2);
  const auto x = at::full({capacity, 3}, me.rank() + 1.0).to(options).requires_grad_();
  const auto y = all_gather(x, {.group = me, .valid = count_of(2)}).tensor;
  const auto weight = at::full({capacity * me.world(), 3}, 2.0).to(options);
  const auto got = grad_of(y, x, weight).to(at::kFloat);
  expect_equal(got.sum(), at::full({}, 12.0f * me.world(), there()), "float8 gradient");
  const auto pairs = at::full({capacity}, c10::complex<double>(1, 2), there(at::kComplexDouble));
  const auto whole = all_gather(pairs, {.group = me, .valid = count_of(1)}).tensor;
  expect_equal(whole.sum(), pairs[0] * me.world(), "complex values");
}

void too_large_a_count_is_told_later(const group& me) {
  const auto x = at::ones({capacity, 2}, there());
  const bool last = me.rank() == me.world() - 1;
  const auto gather = [&](std::int64_t rows) {
    return all_gather(x, {.group = me, .valid = count_of(rows)}).tensor.sum().item<double>();
  };
  {
    const c10::InferenceMode first;  // what is kept must be of use outside, too
    gather(1);
  }
  expect(gather(last ? capacity + 3 : 1) == 2.0 * (me.world() - 1 + capacity), "clamped");
  expect_contains(error_of<c10::ValueError>([&] { gather(1); }, "a clamped count"), "was clamped");
  expect(gather(1) == 2.0 * me.world(), "once is enough");
}

void counts_that_int64_does_not_hold(const group& me) {
  const auto x = at::ones({capacity, 2}, there());
  const auto count = at::full({}, -1, there(at::kLong)).to(at::kUInt64);
  const auto y = all_gather(x, {.group = me, .valid = count}).tensor;
  expect(y.sum().item<double>() == 2.0 * capacity * me.world(), "clamped to the buffer");
  const auto again = [&] { all_gather(x, {.group = me, .valid = count_of(1)}); };
  expect_contains(error_of<c10::ValueError>(again, "a clamped count"), "was clamped");
}

void what_is_refused(const group& me) {
  const bool last = me.rank() == me.world() - 1;
  const auto refused = [&](const at::Tensor& x, const at::Tensor& valid, const std::string& text) {
    const auto said = error_of<c10::ValueError>([&] { all_gather(x, {.group = me, .valid = valid}); }, text);
    expect_contains(said, text);
  };
  all_gather(at::ones({capacity, 2}, there()), {.group = me, .valid = count_of(1)});
  if (me.world() > 1) {
    refused(at::ones({capacity + last, 2}, there()), count_of(1), "must have the same rows");
  }
  refused(at::ones({capacity}, there()), at::ones({}, there()), "one integer");
  refused(at::ones({capacity}, there()), at::ones({}, there(at::kBool)), "one integer");
  refused(at::ones({capacity}, there()), at::ones({2}, there(at::kLong)), "one integer");
  refused(at::ones({}, there()), count_of(1), "0-d");
  all_gather(at::ones({capacity, 2}, there()), {.group = me, .valid = count_of(1)});
}

}  // namespace

case_list valid_cases() {
  return {{"valid/values_and_gradients", values_and_gradients},
          {"valid/other_types", other_types},
          {"valid/too_large_a_count_is_told_later", too_large_a_count_is_told_later},
          {"valid/counts_that_int64_does_not_hold", counts_that_int64_does_not_hold},
          {"valid/what_is_refused", what_is_refused}};
}

}  // namespace sheaf::test
