// SPDX-License-Identifier: MIT
// group: names, ranks, engines, and groups of one rank.
#include <cstdlib>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

bool of_threads(const group& me) { return me.name().starts_with("threads:"); }

void name_rank_and_engine(const group& me) {
  const auto again = group::named(me.name());
  expect(again.rank() == me.rank() && again.world() == me.world(), "the same group by its name");
  expect(me.rank() >= 0 && me.rank() < me.world(), "a rank of the group");
  const auto asked = std::getenv("SHEAF_ENGINE");
  const std::string plain = asked && std::string(asked) == "collectives" ? "collectives of gloo" : "c10d over gloo";
  const auto carried = is_shared(me) ? "shm (all " + std::to_string(me.world()) + " ranks" : plain;
  expect_contains(me.engine(), "cpu: " + (of_threads(me) ? "threads" : carried));
  expect_contains(me.engine(), "cuda: none");
}

void ranks_are_in_order(const group& me) {
  const auto got = all_gather(at::full({1}, me.rank(), at::kLong), {.group = me}).tensor;
  expect_equal(got, at::arange(me.world(), at::kLong), "the ranks' own numbers");
}

// The default group is the process group where there is one, and this process alone otherwise.
void default_group(const group& me) {
  const group none;
  if (of_threads(me) || me.name().starts_with("env:")) {
    expect(none.name().empty() && none.rank() == 0 && none.world() == 1, "alone by default");
    expect_contains(none.engine(), "alone");
    const ragged now{.sizes = {3}, .seed = static_cast<std::uint64_t>(me.rank() + 1)};
    const auto [y, sizes] = all_gather(now.block(0));
    expect_equal(y, now.block(0), "a gather alone");
    expect_equal(sizes, at::full({1}, 3, at::kLong), "sizes alone");
    expect_equal(gather_sizes(now.block(0)), at::full({1}, 3, at::kLong), "gather_sizes alone");
    expect_equal(reduce_scatter(now.block(0), sizes), now.block(0), "a reduction alone");
    expect(offset(sizes) == 0, "offset alone");
    return;
  }
  expect(none.name() == "0" && none.rank() == me.rank() && none.world() == me.world(), "the default process group");
  const ragged now{.sizes = extents(me.world(), 2)};
  expect_equal(all_gather(now.block(me.rank())).tensor, now.gathered(), "a gather on the default group");
}

void unknown_names_are_refused(const group&) {
  for (const auto* name : {"no such group", "threads:", "threads:1000000/0", "threads:x/y"}) {
    const auto nobody = group::named(name);
    const auto text = error_of<c10::ValueError>([&] { nobody.rank(); }, name);
    expect_contains(text, std::string("\"") + name + "\"");
    error_of<c10::ValueError>([&] { nobody.world(); }, name);
    error_of<c10::ValueError>([&] { all_gather(at::ones({2}), {.group = nobody}); }, name);
  }
}

// In a group of one all local checks run, the result may be the input, and gradients pass.
void one_rank(const group& me) {
  if (me.world() != 1) return;
  const ragged now{.sizes = {3}, .dim = 1};
  for (const auto mode : all_modes) {
    const auto x = leaf(now.block(0));
    const auto [y, sizes] = all_gather(x, {.dim = 1, .sizes = now.sizes_tensor(), .grad = mode, .group = me});
    expect_equal(y, now.block(0), "the input");
    expect_equal(sizes, now.sizes_tensor(), "sizes");
    expect_equal(grad_of(y, x, now.whole(0)), now.whole(0), "its gradient");
  }
  const auto strided = now.block(0).transpose(0, 2);
  expect(all_gather(strided, {.group = me}).tensor.is_contiguous(), "a contiguous result");
  expect_equal(reduce_scatter(strided, at::tensor({4}, at::kLong), {.group = me}), strided, "reduce_scatter");

  const auto refused = [&](const auto& body, const std::string& text) {
    expect_contains(error_of<c10::ValueError>(body, text), text);
  };
  const auto x = now.block(0);
  refused([&] { all_gather(at::scalar_tensor(1), {.group = me}); }, "reshape(1)");
  refused([&] { all_gather(x.to(at::kMeta), {.group = me}); }, "meta tensors hold no data");
  refused([&] { reduce_scatter(x.to(at::kMeta), at::tensor({2}, at::kLong), {.group = me}); }, "hold no data");
  refused([&] { all_gather(x, {.dim = 3, .group = me}); }, "dim must be from -3 to 2, got 3");
  refused([&] { all_gather(x, {.sizes = at::tensor({4}, at::kLong), .group = me}); }, "4 rows, but it has 2");
  refused([&] { reduce_scatter(x, at::tensor({1, 1}, at::kLong), {.group = me}); }, "1 entries, one per rank, got 2");
  refused([&] { reduce_scatter(x.to(at::kBool), at::tensor({2}, at::kLong), {.group = me}); }, "bool");
  refused([&] { reduce_scatter(x.to(at::kInt), at::tensor({2}, at::kLong), {.op = reduce_op::mean, .group = me}); },
          "no mean");
}

}  // namespace

case_list group_cases() {
  return {{"group/name_rank_and_engine", name_rank_and_engine},
          {"group/ranks_are_in_order", ranks_are_in_order},
          {"group/default_group", default_group},
          {"group/unknown_names_are_refused", unknown_names_are_refused},
          {"group/one_rank", one_rank}};
}

}  // namespace sheaf::test
