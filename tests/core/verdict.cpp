// SPDX-License-Identifier: MIT
// All ranks' headers to "go on" or to one text.
#include "core/verdict.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace sheaf;
using frames = std::vector<std::optional<frame>>;

// Call #17 of four ranks; rank r holds r + 1 rows of 4.
frames calls(operation op = operation::all_gather) {
  frames all;
  for (int rank = 0; rank < 4; ++rank) {
    frame said;
    said.head.op = op;
    said.head.sequence = 17;
    const std::int64_t rows = op == operation::reduce_scatter ? 10 : rank + 1;
    said.head.tensors = {{dtype::float32, device_type::cpu, 0, 2, {rows, 4}}};
    all.emplace_back(said);
  }
  return all;
}

std::vector<std::byte> payload(const std::vector<std::int64_t>& sizes) {
  std::vector<std::byte> bytes;
  for (const auto size : sizes) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(size) >> (8 * i)));
  }
  return bytes;
}

// A payload of the frame's own.
void give(std::optional<frame>& said, const std::vector<std::int64_t>& sizes) {
  const auto bytes = payload(sizes);
  said = with_own_payload({said->head, bytes});
}

void give_sizes(frames& all, const std::vector<std::int64_t>& sizes) {
  for (auto& said : all) {
    said->head.sized = true;
    give(said, sizes);
  }
}

std::string text(const frames& all) { return verdict(all).value_or("go on"); }

record& tensor(frames& all, int rank) { return all[rank]->head.tensors[0]; }

TEST(verdict, agreement_goes_on) {
  for (const auto op : {operation::all_gather, operation::reduce_scatter, operation::gather_sizes}) {
    EXPECT_EQ(text(calls(op)), "go on") << name(op);
  }
  EXPECT_EQ(text({}), "go on");
}

TEST(verdict, no_frame_of_this_protocol) {
  auto all = calls();
  all[0] = std::nullopt;
  EXPECT_EQ(text(all), "all_gather #17: rank 0 speaks another protocol version or is not Sheaf");
  all[2] = std::nullopt;
  EXPECT_EQ(text(all), "all_gather #17: ranks 0, 2 speak another protocol version or are not Sheaf");
  EXPECT_EQ(text(frames(2)), "ranks 0, 1 speak another protocol version or are not Sheaf");
}

// The least, since those ranks may not hear of others; where some refuse, theirs, who may not hear anybody.
TEST(verdict, all_ranks_give_up_as_many_calls) {
  auto all = calls();
  for (auto& said : all) said->head.follows = 2;
  EXPECT_EQ(given_up_by_all(all), 2);
  all[3]->head.follows = 1;
  EXPECT_EQ(given_up_by_all(all), 1);
  EXPECT_EQ(
      text(all),
      "all_gather #17: ranks disagree on how many calls follow in the same step: 2 on ranks 0, 1, 2; 1 on rank 3");
  all[1]->head.refusal = "no";
  EXPECT_EQ(given_up_by_all(all), 2);
  all[0] = std::nullopt;
  EXPECT_EQ(given_up_by_all(all), 2);
  all[2]->head.apart = true;
  EXPECT_EQ(given_up_by_all(all), 0) << "a started call cannot give up what has begun";
}

// Steps that learn sizes first are told as the program knows them.
TEST(verdict, a_step_is_named_after_the_call_that_the_program_makes) {
  auto all = calls(operation::gather_sizes);
  all[1]->head.follows = 1;
  EXPECT_EQ(
      text(all),
      "gather_sizes #17: ranks disagree on how many calls follow in the same step: 0 on ranks 0, 2, 3; 1 on rank 1");
  EXPECT_EQ(title(all[1]->head), "all_gather #17");
  EXPECT_EQ(describe(all[1]->head), "all_gather #17 (sizes first; float32 [2, 4], dim 0)");
  all[2]->head.op = operation::reduce_scatter;
  EXPECT_NE(text(all).find("all_gather (sizes first) on rank 1"), std::string::npos) << text(all);
  all[1]->head.tensors.push_back(tensor(all, 1));
  EXPECT_EQ(title(all[1]->head), "all_gather_coalesced #17");
}

TEST(verdict, refusals_come_before_disagreements) {
  auto all = calls();
  all[1]->head.refusal = "dim 5 is out of range";
  tensor(all, 2).type = dtype::int32;
  EXPECT_EQ(text(all), "all_gather #17: rank 1 refuses: dim 5 is out of range");
  all[3]->head.refusal = "dim 5 is out of range";
  all[0]->head.refusal = "x is sparse";
  EXPECT_EQ(text(all), "all_gather #17: rank 0 refuses: x is sparse; ranks 1, 3 refuse: dim 5 is out of range");
  all[2] = std::nullopt;
  EXPECT_EQ(text(all), "all_gather #17: rank 2 speaks another protocol version or is not Sheaf");
}

TEST(verdict, order_and_op) {
  auto all = calls();
  all[1]->head.op = operation::reduce_scatter;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on op: all_gather on ranks 0, 2, 3; reduce_scatter on rank 1");
  all[1]->head.sequence = 18;
  EXPECT_EQ(
      text(all),
      "all_gather #17: ranks disagree on sequence: all_gather #17 on ranks 0, 2, 3; reduce_scatter #18 on rank 1");
}

TEST(verdict, ranks_left_out_of_a_backward) {
  auto all = calls(operation::reduce_scatter);
  for (const int rank : {0, 2, 3}) all[rank]->head.origin = 12;
  all[1]->head.op = operation::all_gather;
  tensor(all, 1).type = dtype::int8;
  EXPECT_EQ(
      text(all),
      "reduce_scatter #17: ranks disagree on op: reduce_scatter (differentiates #12) on ranks 0, 2, 3; all_gather "
      "on rank 1; rank 1 has left out the backward of #12: every rank's loss must use that result, if only by "
      "y[:0].sum()");
  all[1]->head = all[0]->head;
  all[1]->head.origin = 11;
  EXPECT_EQ(text(all),
            "reduce_scatter #17: ranks disagree on the call it differentiates: #12 on ranks 0, 2, 3; #11 on rank 1");
}

TEST(verdict, backwards_beside_a_call_of_the_same_op) {
  auto all = calls(operation::reduce_scatter);
  for (const int rank : {0, 2, 3}) all[rank]->head.origin = 12;
  EXPECT_EQ(
      text(all),
      "reduce_scatter #17: ranks disagree on the call it differentiates: #12 on ranks 0, 2, 3; none on rank 1; rank "
      "1 has left out the backward of #12: every rank's loss must use that result, if only by y[:0].sum()");
}

TEST(verdict, tensors) {
  auto all = calls();
  all[3]->head.tensors.push_back(tensor(all, 3));
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on the number of tensors: 1 on ranks 0, 1, 2; 2 on rank 3");
  all = calls();
  for (auto& said : all) said->head.tensors.push_back(said->head.tensors[0]);
  all[0]->head.tensors[1].type = dtype::int8;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on dtype of tensor 1: int8 on rank 0; float32 on ranks 1, 2, 3");
}

TEST(verdict, each_property_of_a_tensor) {
  auto all = calls();
  tensor(all, 1).type = dtype::int32;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on dtype: float32 on ranks 0, 2, 3; int32 on rank 1");
  tensor(all, 1).dim = 1;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on dim: 0 on ranks 0, 2, 3; 1 on rank 1");
  tensor(all, 1).ndim = 3;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on ndim: 2 on ranks 0, 2, 3; 3 on rank 1");
  tensor(all, 1).device = device_type::cuda;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on device: cpu on ranks 0, 2, 3; cuda on rank 1");
}

TEST(verdict, shapes) {
  auto all = calls();
  tensor(all, 2).shape[1] = 5;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on the size of dim 1: 4 on ranks 0, 1, 3; 5 on rank 2");
  all = calls(operation::gather_sizes);
  tensor(all, 2).shape[1] = 5;
  EXPECT_NE(text(all), "go on");
  all = calls(operation::reduce_scatter);
  tensor(all, 0).shape[0] = 9;
  EXPECT_EQ(text(all), "reduce_scatter #17: ranks disagree on the size of dim 0: 9 on rank 0; 10 on ranks 1, 2, 3");
}

TEST(verdict, modes) {
  auto all = calls();
  all[0]->head.mode = gradient::own;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on gradient mode: own on rank 0; sum on ranks 1, 2, 3");
  all = calls(operation::reduce_scatter);
  all[3]->head.mode = gradient::mean;
  EXPECT_EQ(text(all), "reduce_scatter #17: ranks disagree on reduction: sum on ranks 0, 1, 2; mean on rank 3");
  all = calls(operation::reduce_scatter);
  all[0]->head.origin = 12;
  all[1]->head.origin = 13;
  EXPECT_EQ(text(all),
            "reduce_scatter #17: ranks disagree on the call it differentiates: #12 on rank 0; #13 on rank 1; "
            "none on ranks 2, 3; ranks 2, 3 have left out the backward of #12: every rank's loss must use that result, "
            "if only by y[:0].sum()");
}

TEST(verdict, sizes) {
  auto all = calls();
  all[1]->head.sized = true;
  EXPECT_EQ(text(all), "all_gather #17: ranks disagree on sizes: to be learned on ranks 0, 2, 3; given on rank 1");
  give_sizes(all, {1, 2, 3, 4});
  EXPECT_EQ(text(all), "go on");
  give(all[2], {1, 2, 3, 5});
  EXPECT_EQ(text(all),
            "all_gather #17: ranks disagree on sizes: [1, 2, 3, 4] on ranks 0, 1, 3; [1, 2, 3, 5] on rank 2");
  give_sizes(all, {1, 2, -3, 4});
  EXPECT_EQ(text(all), "all_gather #17: sizes: rank 2 holds 3 along dim 0, but sizes [1, 2, -3, 4] say -3");
  give_sizes(all, {1, 2, 3});
  EXPECT_EQ(text(all), "all_gather #17: sizes: expected one size a rank (4), got [1, 2, 3]");
}

TEST(verdict, sizes_of_reduce_scatter_are_not_its_extents) {
  auto all = calls(operation::reduce_scatter);
  give_sizes(all, {5, 5, 0, 0});
  EXPECT_EQ(text(all), "go on");
  give(all[1], {5, 4, 1, 0});
  EXPECT_EQ(text(all),
            "reduce_scatter #17: ranks disagree on sizes: [5, 5, 0, 0] on ranks 0, 2, 3; [5, 4, 1, 0] on rank 1");
}

TEST(verdict, payloads_of_calls_without_sizes_are_data) {
  auto all = calls();
  give(all[1], {42});
  EXPECT_EQ(text(all), "go on");
}

TEST(verdict, recording) {
  auto all = calls();
  all[0]->head.records_gradient = recording::on;
  for (const int rank : {1, 2, 3}) all[rank]->head.records_gradient = recording::idle;
  EXPECT_EQ(text(all), "go on") << "an input that needs no gradient takes part";
  all[1]->head.records_gradient = recording::off;
  EXPECT_EQ(text(all),
            "all_gather #17: rank 1 is under no_grad while rank 0 records gradients; use grad=\"own\" or record "
            "everywhere (of a tensor from inference mode, pass x.clone())");
  all[2]->head.records_gradient = recording::on;
  all[3]->head.records_gradient = recording::off;
  EXPECT_EQ(
      text(all),
      "all_gather #17: ranks 1, 3 are under no_grad while ranks 0, 2 record gradients; use grad=\"own\" or record "
      "everywhere (of a tensor from inference mode, pass x.clone())");
  for (auto& said : all) said->head.mode = gradient::own;
  EXPECT_EQ(text(all), "go on") << "own needs nobody";
}

// Two tensors a rank, of rank + 1 and 2 rows.
frames coalesced_calls(operation op = operation::all_gather_coalesced) {
  auto all = calls(op);
  for (auto& said : all) said->head.tensors.push_back({dtype::int64, device_type::cpu, 1, 2, {3, 2}});
  return all;
}

TEST(verdict, what_coalesced_calls_say_of_each_tensor) {
  EXPECT_EQ(text(coalesced_calls()), "go on");
  auto all = coalesced_calls();
  all[2]->head.tensors[1].mode = gradient::own;
  EXPECT_EQ(
      text(all),
      "all_gather_coalesced #17: ranks disagree on gradient mode of tensor 1: sum on ranks 0, 1, 3; own on rank 2");
  all = coalesced_calls();
  all[0]->head.tensors[0].records_gradient = recording::on;
  EXPECT_EQ(text(all),
            "all_gather_coalesced #17: ranks 1, 2, 3 are under no_grad while rank 0 records gradients of tensor 0; "
            "use grad=\"own\" or record everywhere (of a tensor from inference mode, pass x.clone())");
  for (auto& said : all) said->head.tensors[0].mode = gradient::own;
  EXPECT_EQ(text(all), "go on") << "own needs nobody";
}

TEST(verdict, sizes_of_some_tensors) {
  auto all = coalesced_calls();
  for (auto& said : all) {
    said->head.tensors[1].sized = true;
    give(said, {2, 2, 2, 2});
  }
  EXPECT_EQ(text(all), "go on");
  give(all[3], {2, 2, 2, 2, 77});
  EXPECT_EQ(text(all), "go on") << "what follows is data";
  give(all[3], {2, 2, 1, 2});
  EXPECT_EQ(text(all),
            "all_gather_coalesced #17: ranks disagree on sizes of tensor 1: [2, 2, 2, 2] on ranks 0, 1, 2; "
            "[2, 2, 1, 2] on rank 3");
  for (auto& said : all) give(said, {2, 2, 5, 2});
  EXPECT_EQ(text(all),
            "all_gather_coalesced #17: sizes of tensor 1: rank 2 holds 2 along dim 1, but sizes [2, 2, 5, 2] say 5");
  all[0]->head.tensors[1].sized = false;
  EXPECT_EQ(text(all),
            "all_gather_coalesced #17: ranks disagree on sizes of tensor 1: to be learned on rank 0; given on ranks 1, "
            "2, 3");
}

TEST(verdict, more_sizes_than_a_frame_holds_are_compared_by_their_digest) {
  auto all = coalesced_calls(operation::reduce_scatter_coalesced);
  for (auto& said : all) {
    said->head.tensors[0].shape[0] = 10;
    said->head.tensors.grow(64, record(said->head.tensors[0]));
  }
  give_sizes(all, std::vector<std::int64_t>(256, 5));
  EXPECT_EQ(given_numbers(all[0]->head, 4), 256);
  EXPECT_EQ(text(all), "go on");
  for (int rank = 0; rank < 3; ++rank) all.push_back(all[0]);
  give_sizes(all, {12, 34});
  EXPECT_EQ(given_numbers(all[0]->head, 7), digest_numbers);
  EXPECT_EQ(text(all), "go on");
  give(all[5], {12, 35});
  EXPECT_EQ(text(all),
            "reduce_scatter_coalesced #17: ranks disagree on sizes: sizes with digest [12, 34] on ranks 0, 1, 2, 3, 4, "
            "6; sizes with digest [12, 35] on rank 5");
}

TEST(verdict, sizes_of_one_tensor_have_a_digest_where_a_frame_has_no_room_for_them) {
  header head;
  head.op = operation::reduce_scatter;
  head.sized = true;
  head.tensors.push_back({.type = dtype::float32, .ndim = 8});
  std::vector<std::int64_t> sizes(max_given_numbers_of_one, 3);
  EXPECT_EQ(as_given(head, sizes.size(), sizes), sizes);
  const std::vector<std::byte> payload(sizes.size() * sizeof(std::int64_t) + inline_bytes);
  EXPECT_LE(encode(head, payload).size(), frame_capacity);

  sizes.resize(4096, 3);
  sizes[0] = 4;
  const auto digest = as_given(head, sizes.size(), sizes);
  EXPECT_EQ(digest.size(), digest_numbers);
  EXPECT_EQ(given_numbers(head, sizes.size()), digest_numbers);
  std::swap(sizes[0], sizes[4095]);
  EXPECT_NE(as_given(head, sizes.size(), sizes), digest);
}

TEST(verdict, hello_compares_order_and_op_alone) {
  auto all = calls(operation::hello);
  tensor(all, 1).type = dtype::int8;
  give(all[2], {1});
  EXPECT_EQ(text(all), "go on");
  all[3]->head.sequence = 1;
  EXPECT_EQ(text(all), "hello #17: ranks disagree on sequence: hello #17 on ranks 0, 1, 2; hello #1 on rank 3");
}

TEST(verdict, words) {
  const std::vector<std::string> values{"a", "b", "a", "c"};
  EXPECT_EQ(group_by_value(values), "a on ranks 0, 2; b on rank 1; c on rank 3");
  EXPECT_EQ(rank_list(std::vector<int>{1}), "rank 1");
  EXPECT_EQ(rank_list(std::vector<int>{0, 2, 3}), "ranks 0, 2, 3");
}

}  // namespace
