// SPDX-License-Identifier: MIT
// The point-to-point engine moves bytes: who reduces what, and messages of any length.
#include <gtest/gtest.h>

#include <cstring>

#include "core/crew.hpp"
#include "core/shares.hpp"
#include "p2p/engine.hpp"

namespace sheaf::test {
namespace {

TEST(shares, every_byte_of_every_block_is_reduced_once) {
  std::mt19937_64 draw(1);
  for (int round = 0; round < 300; ++round) {
    const int world = 1 + static_cast<int>(draw() % 6);
    const auto at = random_layout(draw, world, 8);
    const auto limit = static_cast<std::int64_t>(1 + draw() % 1000);
    const shares plan(at, limit, round % 2 == 0);
    std::vector<std::vector<int>> times(world);
    for (int owner = 0; owner < world; ++owner) times[owner].assign(at.block_bytes(owner), 0);
    std::size_t number = 0;
    for (const auto& piece : plan.pieces()) {
      EXPECT_EQ(piece.number, number++);
      EXPECT_GT(piece.bytes, 0);
      EXPECT_LE(piece.bytes, std::max<std::int64_t>(limit, 64));
      EXPECT_EQ(piece.first % 8, 0) << "pieces begin at an element";
      ASSERT_LE(piece.first + piece.bytes, at.block_bytes(piece.owner));
      for (std::int64_t byte = 0; byte < piece.bytes; ++byte) ++times[piece.owner][piece.first + byte];
    }
    for (const auto& block : times) {
      for (const int count : block) ASSERT_EQ(count, 1);
    }
  }
}

TEST(shares, the_steps_of_all_reducers_are_the_pieces) {
  std::mt19937_64 draw(2);
  for (int round = 0; round < 100; ++round) {
    const int world = 1 + static_cast<int>(draw() % 6);
    const shares plan(random_layout(draw, world, 4), 64, round % 2 == 0);
    std::vector<int> times(plan.pieces().size(), 0);
    for (int reducer = 0; reducer < world; ++reducer) {
      for (std::int64_t step = 0; step < plan.steps(); ++step) {
        const auto* piece = plan.at(reducer, step);
        if (!piece) continue;
        EXPECT_EQ(piece->reducer, reducer);
        ++times[piece->number];
      }
      EXPECT_EQ(plan.at(reducer, plan.steps()), nullptr);
    }
    for (const int count : times) EXPECT_EQ(count, 1);
  }
}

// Unbalanced, everybody reduces its own rows; balanced, nobody more than an even share.
TEST(shares, balance_shares_the_work_out) {
  std::mt19937_64 draw(5);
  for (int round = 0; round < 100; ++round) {
    const int world = 1 + static_cast<int>(draw() % 6);
    const auto at = random_layout(draw, world, 8);
    const shares own(at, 256, false);
    for (const auto& piece : own.pieces()) EXPECT_EQ(piece.reducer, piece.owner);
    const shares balanced(at, 256, true);
    std::vector<std::int64_t> work(world, 0);
    for (const auto& piece : balanced.pieces()) work[piece.reducer] += piece.bytes;
    for (const auto bytes : work) EXPECT_LE(bytes, at.bytes() / world + 64);
  }
}

// Every rank brings its block of the same random whole.
TEST(all_gather, in_messages_of_any_length) {
  std::mt19937_64 draw(3);
  for (const int world : {1, 2, 3, 5}) {
    for (const std::int64_t message_bytes : {1, 7, 64, 1 << 20}) {
      crew ranks(world, message_bytes);
      for (int round = 0; round < 5; ++round) {
        const auto at = random_layout(draw, world, 3);
        const auto whole = random_bytes(at.bytes(), draw());
        const auto errors = ranks.run([&](p2p::engine& me) {
          const auto result = allocate(at.bytes());
          me.all_gather(next_call(me, operation::all_gather), at, copy_of(block_of(at, me.rank(), whole)), result);
          EXPECT_EQ(content(result), whole);
        });
        EXPECT_EQ(errors, std::vector<std::string>(world));
      }
    }
  }
}

// Rank r brings random bytes of seed r; their sum wraps.
TEST(reduce_scatter, in_pieces_of_any_length) {
  std::mt19937_64 draw(4);
  for (const int world : {1, 2, 3, 5}) {
    for (const std::int64_t message_bytes : {64, 100, 1 << 20}) {
      crew ranks(world, message_bytes);
      for (int round = 0; round < 5; ++round) {
        const auto at = random_layout(draw, world, 1);
        const auto seed = draw();
        bytes sum(at.bytes());
        for (int rank = 0; rank < world; ++rank) {
          const auto theirs = random_bytes(sum.size(), seed + rank);
          for (std::size_t i = 0; i < sum.size(); ++i) {
            sum[i] = static_cast<std::byte>(std::to_integer<int>(sum[i]) + std::to_integer<int>(theirs[i]));
          }
        }
        const auto errors = ranks.run([&](p2p::engine& me) {
          const auto own = allocate(at.block_bytes(me.rank()));
          const auto whole = copy_of(random_bytes(sum.size(), seed + me.rank()));
          me.reduce_scatter(next_call(me, operation::reduce_scatter), at, reduction::sum, whole, own);
          EXPECT_EQ(content(own), block_of(at, me.rank(), sum));
        });
        EXPECT_EQ(errors, std::vector<std::string>(world));
      }
    }
  }
}

// 1, 2^-24 and 2^-24 in float32 make 1 when added in rank order, and their mean is rounded once more.
TEST(reduce_scatter, means_add_in_rank_order) {
  crew ranks(3, 64);
  const auto at = make_layout(extents{1, 50}, 0, extents{1, 1, 1}, 4);
  const auto errors = ranks.run([&](p2p::engine& me) {
    const std::vector<float> mine(150, me.rank() == 0 ? 1.0f : 0x1p-24f);
    const auto whole = allocate(600);
    std::memcpy(whole.data, mine.data(), 600);
    const auto own = allocate(200);
    me.reduce_scatter(next_call(me, operation::reduce_scatter, dtype::float32), at, reduction::mean, whole, own);
    std::vector<float> got(50);
    std::memcpy(got.data(), own.data, 200);
    EXPECT_EQ(got, std::vector<float>(50, 1.0f / 3));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(exchange, every_rank_hears_every_header_and_payload) {
  crew ranks(4, 1 << 20);
  const auto errors = ranks.run([](p2p::engine& me) {
    for (int round = 0; round < 20; ++round) {
      const auto now = next_call(me, operation::all_gather);
      const auto own = random_bytes(100 * me.rank(), me.rank() + round);  // lives as long as the frames do
      const auto frames = me.exchange(now, own).frames();
      ASSERT_EQ(frames.size(), 4u);
      for (int peer = 0; peer < 4; ++peer) {
        ASSERT_TRUE(frames[peer]);
        EXPECT_EQ(frames[peer]->head, now.head);
        const auto& heard = frames[peer]->payload;
        EXPECT_EQ(bytes(heard.begin(), heard.end()), random_bytes(100 * peer, peer + round));
      }
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
}

}  // namespace
}  // namespace sheaf::test
