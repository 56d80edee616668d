// SPDX-License-Identifier: MIT
// What ranks say is the same, whether only what differs was kept or all of it.
#include "core/heard.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/engine.hpp"

namespace {

using namespace sheaf;
using bytes = std::vector<std::byte>;
using numbers = std::vector<std::int64_t>;

// Rank r of three holds r + 1 rows of the first tensor and 7 - r of the second, which is joined along dim 1.
header head_of(int rank) {
  header head;
  head.op = operation::all_gather_coalesced;
  head.sequence = 5;
  head.tensors.push_back({.type = dtype::int8, .dim = 0, .ndim = 2, .shape = {rank + 1, 4}});
  head.tensors.push_back({.dim = 1, .ndim = 2, .shape = {2, 7 - rank}, .records_gradient = recording::on});
  return head;
}

// What the three said, after the sizes that were given: rank r says r, r times.
struct crowd {
  call now;
  std::vector<bytes> heads, payloads;

  explicit crowd(numbers given = {}) {
    now.head = head_of(1);
    now.numbers = std::move(given);
    for (auto& tensor : now.head.tensors) tensor.sized = !now.numbers.empty();
    const auto sizes = std::as_bytes(std::span(now.numbers));
    for (int rank = 0; rank < 3; ++rank) {
      auto head = now.head;
      for (int i = 0; i < 2; ++i) head.tensors[i].rows() = head_of(rank).tensors[i].rows();
      heads.push_back(encode(head));
      payloads.emplace_back(sizes.begin(), sizes.end());
      payloads.back().resize(sizes.size() + rank, static_cast<std::byte>(rank));
    }
  }
  heard alike() const {
    heard all;
    all.begin(now);
    for (int rank = 0; rank < 3; ++rank) {
      all.add({read_rows(heads[rank], now.head, 0), heads[rank], payloads[rank]});
    }
    return all;
  }
  heard in_full() const {
    std::vector<std::optional<frame>> frames;
    for (int rank = 0; rank < 3; ++rank) frames.emplace_back(frame{decode(heads[rank])->head, payloads[rank]});
    heard all;
    all.begin(now);
    all.set(std::move(frames));
    return all;
  }
};

TEST(heard, answers_are_the_same_in_short_and_in_full) {
  for (const auto& given : {numbers(), numbers{1, 2, 3, 7, 6, 5}}) {
    const crowd all(given);
    for (const auto& said : {all.alike(), all.in_full()}) {
      EXPECT_EQ(said.verdict(), std::nullopt);
      ASSERT_EQ(said.world(), 3u);
      ASSERT_EQ(said.tensors(), 2u);
      EXPECT_EQ(said.rows_of(0), (numbers{1, 2, 3}));
      EXPECT_EQ(said.rows_of(1), (numbers{7, 6, 5}));
      EXPECT_FALSE(said.any_is_apart());
      EXPECT_FALSE(said.any_records());
      EXPECT_FALSE(said.any_records(0));
      EXPECT_TRUE(said.any_records(1));
      for (std::size_t rank = 0; rank < 3; ++rank) {
        const auto payload = said.payload(rank);
        EXPECT_EQ(bytes(payload.begin(), payload.end()), bytes(rank, static_cast<std::byte>(rank)));
        EXPECT_EQ(said.head(rank), decode(all.heads[rank])->head);
        EXPECT_EQ(said.frames()[rank]->head, said.head(rank));
      }
    }
  }
}

// The sizes given are those of other blocks than rank 2 holds.
TEST(heard, rows_that_are_not_as_given_are_told_in_the_same_words) {
  const crowd all({1, 2, 3, 7, 6, 4});
  ASSERT_TRUE(all.alike().verdict());
  EXPECT_EQ(all.alike().verdict(), all.in_full().verdict());
  EXPECT_NE(all.alike().verdict()->find("rank 2 holds 5 along dim 1"), std::string::npos) << *all.alike().verdict();
}

TEST(heard, one_rank_that_records_is_seen_among_others) {
  crowd all;
  auto frames = all.in_full().frames();
  frames[2]->head.apart = true;
  frames[0]->head.tensors[0].records_gradient = recording::on;
  heard said;
  said.begin(all.now);
  said.set(std::move(frames));
  EXPECT_TRUE(said.any_is_apart());
  EXPECT_TRUE(said.any_records(0));
  said.begin(all.now);
  EXPECT_EQ(said.world(), 0u) << "all is forgotten";
}

}  // namespace
