// SPDX-License-Identifier: MIT
// all_gather: values of the result, whatever the sizes, the dim and the input's layout.
#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

void check(const group& me, const ragged& now, const at::Tensor& x, const std::string& what) {
  const auto text = what + ", " + now.text();
  const auto want = now.gathered();
  const auto [learned, sizes] = all_gather(x, {.dim = now.dim, .group = me});
  expect_equal(learned, want, "learned: " + text);
  expect_equal(sizes, now.sizes_tensor(), "sizes: " + text);
  expect(learned.is_contiguous() && sizes.is_contiguous(), "contiguous: " + text);

  const auto [given, same] = all_gather(x, {.dim = now.dim, .sizes = now.sizes_tensor(), .group = me});
  expect_equal(given, want, "sizes given: " + text);
  expect_equal(same, now.sizes_tensor(), "sizes given: " + text);
  expect(given.is_contiguous(), "contiguous with sizes given: " + text);
}

void every_pattern_and_dim(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1, 2, -1, -2, -3}) {
      const ragged now{.sizes = sizes, .dim = dim};
      check(me, now, now.block(me.rank()), "contiguous");
    }
  }
}

// Rows too long to ride along with the header, on all ranks or on some.
void blocks_beyond_the_header(const group& me) {
  for (const auto& sizes : size_patterns(me.world())) {
    for (const std::int64_t dim : {0, 1}) {
      const ragged now{.sizes = sizes, .dim = dim, .shape = {2, 3, 400}};
      check(me, now, now.block(me.rank()), "long rows");
    }
  }
  ragged mixed{.sizes = extents(me.world(), 1), .shape = {0, 100}};
  mixed.sizes.back() = 64;
  check(me, mixed, mixed.block(me.rank()), "one long block");
}

// Each rank in turn has all of 3 MiB, so that messages are in flight for a while.
void one_heavy_rank(const group& me) {
  for (int heavy = 0; heavy < me.world(); ++heavy) {
    ragged now{.sizes = extents(me.world(), 1), .dim = 1, .shape = {3, 0, 1024}, .type = at::kFloat};
    now.sizes[heavy] = 256;
    check(me, now, now.block(me.rank()), "heavy");
  }
}

void inputs_of_any_layout(const group& me) {
  const int rank = me.rank();
  for (const std::int64_t dim : {0, 1, -1}) {
    for (const extents& shape : {extents{2, 3, 4}, extents{2, 30, 400}}) {
      ragged now{.sizes = extents(me.world(), 2), .dim = dim, .shape = shape};
      now.sizes[0] = 3;
      const auto x = now.block(rank);
      check(me, now, x.transpose(0, 2).contiguous().transpose(0, 2), "transposed");
      check(me, now, at::stack({x, x + 1}, -1).select(-1, 0), "every other element");
      check(me, now, at::cat({x, x}, 1).narrow(1, x.size(1), x.size(1)), "second half");
    }
  }
}

void channels_last_input(const group& me) {
  for (const std::int64_t dim : {0, 1, 2, -1}) {
    ragged now{.sizes = extents(me.world(), 2), .dim = dim, .shape = {2, 3, 4, 5}};
    now.sizes.back() = 4;
    check(me, now, now.block(me.rank()).contiguous(at::MemoryFormat::ChannelsLast), "channels last");
  }
}

// Rank r brings r + 1 rows of one value, and no memory for them.
void expanded_input(const group& me) {
  std::vector<at::Tensor> blocks;
  ragged now;
  for (int rank = 0; rank < me.world(); ++rank) {
    blocks.push_back(noise({1, 1, 4}, rank).expand({rank + 1, 3, 4}));
    now.sizes.push_back(rank + 1);
  }
  const auto x = blocks[me.rank()];
  expect_equal(all_gather(x, {.group = me}).tensor, now.joined(blocks), "expanded, learned");
  const auto given = all_gather(x, {.sizes = now.sizes_tensor(), .group = me}).tensor;
  expect_equal(given, now.joined(blocks), "expanded, sizes given");
}

void lazily_conjugated_input(const group& me) {
  ragged now{.sizes = extents(me.world(), 2), .type = at::kComplexDouble};
  const auto x = now.block(me.rank()).conj();
  expect_equal(all_gather(x, {.group = me}).tensor, now.gathered().conj().resolve_conj(), "conjugated");
}

void sizes_of_any_integer_type(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  for (const auto type : {at::kByte, at::kShort, at::kInt, at::kLong}) {
    const auto sizes = now.sizes_tensor().to(type);
    const auto [got, same] = all_gather(now.block(me.rank()), {.sizes = sizes, .group = me});
    expect_equal(got, now.gathered(), "sizes as another integer type");
    expect_equal(same, now.sizes_tensor(), "sizes come back as int64");
  }
}

void result_is_memory_of_its_own(const group& me) {
  if (me.world() == 1) return;  // there the result may be the input
  const ragged now{.sizes = extents(me.world(), 3)};
  const auto x = now.block(me.rank());
  for (const bool given : {false, true}) {
    const auto sizes = now.sizes_if(given);
    const auto y = all_gather(x, {.sizes = sizes, .group = me}).tensor;
    expect(!y.is_alias_of(x), "the result does not alias the input");
    y.zero_();
    expect_equal(x, now.block(me.rank()), "the input after the result was overwritten");
  }
}

}  // namespace

case_list all_gather_cases() {
  return {{"all_gather/every_pattern_and_dim", every_pattern_and_dim},
          {"all_gather/blocks_beyond_the_header", blocks_beyond_the_header},
          {"all_gather/one_heavy_rank", one_heavy_rank},
          {"all_gather/inputs_of_any_layout", inputs_of_any_layout},
          {"all_gather/channels_last_input", channels_last_input},
          {"all_gather/expanded_input", expanded_input},
          {"all_gather/lazily_conjugated_input", lazily_conjugated_input},
          {"all_gather/sizes_of_any_integer_type", sizes_of_any_integer_type},
          {"all_gather/result_is_memory_of_its_own", result_is_memory_of_its_own}};
}

}  // namespace sheaf::test
