// SPDX-License-Identifier: MIT
// Frames in shared memory: all ranks hear all, whoever refuses, comes late, leaves early or runs ahead.
#include <gtest/gtest.h>

#include "core/shm_crew.hpp"
#include "core/skips.hpp"

namespace sheaf::test {
namespace {

// Rank r's payload in round k: random bytes of seed (r, k), mostly short, some as long as a slot holds.
bytes payload_of(int rank, int round) {
  std::mt19937_64 draw(1000 * round + rank);
  const auto length = draw() % 20 == 0 ? shm::payload_capacity : draw() % 300;
  return random_bytes(length, draw());
}

bytes payload_from(const frame& said) { return {said.payload.begin(), said.payload.end()}; }

// Whether the next call ends because another rank left it, and not at the deadline.
bool is_deserted(shm::engine& me) {
  turn mine(me, operation::all_gather);
  try {
    me.exchange(mine.now, {});
  } catch (const rank_error& error) {
    return std::string(error.what()).find("left this call") != std::string::npos;
  }
  return false;
}

TEST(shm_exchange, every_rank_hears_every_header_and_payload) {
  for (const int world : {2, 3, 5}) {
    shm_crew ranks(world);
    const auto errors = ranks.run([&](shm::engine& me) {
      std::mt19937_64 draw(me.rank());
      for (int round = 1; round <= 100; ++round) {
        turn mine(me, operation::all_gather);
        const auto own = payload_of(me.rank(), round);
        const auto frames = me.exchange(mine.now, own).frames();
        EXPECT_EQ(mine.now.head.sequence, round);
        ASSERT_EQ(frames.size(), static_cast<std::size_t>(world));
        if (draw() % 4 == 0) std::this_thread::yield();  // payloads stay until the call ends
        for (int peer = 0; peer < world; ++peer) {
          ASSERT_TRUE(frames[peer]);
          EXPECT_EQ(frames[peer]->head, mine.now.head);
          ASSERT_EQ(payload_from(*frames[peer]), payload_of(peer, round)) << "round " << round;
        }
      }
    });
    EXPECT_EQ(errors, no_errors(world));
  }
}

// Every rank brings a block for each, behind sizes, and takes the one that is for it.
TEST(shm_exchange, what_a_rank_alone_reads_comes_from_all_others) {
  constexpr int world = 3;
  for (const std::size_t block : {std::size_t{24}, 7 * kib}) {
    shm_crew ranks(world);
    const auto errors = ranks.run([&](shm::engine& me) {
      for (int round = 1; round <= 50; ++round) {
        turn mine(me, operation::reduce_scatter);
        mine.now.numbers = {1, 2, 3};
        mine.now.head.sized = true;
        const auto brought = [&](int rank) { return random_bytes(world * block, 100 * round + rank); };
        const auto own = brought(me.rank());
        const payload::part wanted{me.rank() * block, block};
        const auto& said = me.exchange(mine.now, {std::span<const std::byte>(own), wanted});
        ASSERT_EQ(said.verdict(), std::nullopt);
        for (int peer = 0; peer < world; ++peer) {
          if (peer == me.rank()) continue;
          const auto theirs = brought(peer);
          ASSERT_TRUE(std::ranges::equal(said.payload(peer).subspan(wanted.first, block),
                                         std::span(theirs).subspan(wanted.first, block)));
        }
      }
    });
    EXPECT_EQ(errors, no_errors(world));
  }
}

TEST(shm_exchange, a_payload_longer_than_a_slot_is_refused) {
  shm_crew ranks(2);
  turn mine(ranks.engine(0), operation::all_gather);
  EXPECT_THROW(ranks.engine(0).exchange(mine.now, bytes(shm::payload_capacity + 1)), std::length_error);
}

// The longest header there is: as many tensors as a call takes, and a refusal that was cut.
TEST(shm_exchange, a_refusal_after_all_records_has_room) {
  shm_crew ranks(2);
  const auto errors = ranks.run([](shm::engine& me) {
    turn mine(me, operation::all_gather_coalesced);
    mine.now.head.tensors.grow(max_tensors, record(mine.now.head.tensors[0]));
    if (me.rank() == 0) learn(me, mine.now);
    mine.now.head.refusal = cut_refusal(std::string(2 * max_refusal, 'x'));
    const auto frames = me.refuse(mine.now);
    ASSERT_EQ(frames.size(), 2u);
    throw value_error(*verdict(frames));
  });
  EXPECT_EQ(errors[0], "all_gather_coalesced #1: rank 1 refuses: " + std::string(max_refusal, 'x'));
  EXPECT_EQ(errors[1], errors[0]);
}

// Rank 1 leaves five calls while rank 0 still reads the first: it may post three of them, and no more.
TEST(shm_exchange, a_rank_that_runs_ahead_writes_over_no_frame_that_is_read) {
  shm_crew ranks(2);
  auto& reader = ranks.engine(0);
  auto& runner = ranks.engine(1);
  std::vector<std::optional<frame>> first;
  std::optional<turn> slow;
  const auto met = run_threads(2, [&](int rank) {
    if (rank == 0) {
      slow.emplace(reader, operation::all_gather);
      first = reader.exchange(slow->now, {}).frames();
    } else {
      turn mine(runner, operation::all_gather);
      runner.exchange(mine.now, payload_of(1, 1));
    }
  });
  ASSERT_EQ(met, no_errors(2));
  for (int round = 2; round <= 6; ++round) {
    turn mine(runner, operation::all_gather, 1ms);
    EXPECT_THROW(runner.exchange(mine.now, payload_of(1, round)), rank_error);
  }
  ASSERT_TRUE(first[1]);
  EXPECT_EQ(payload_from(*first[1]), payload_of(1, 1));
  slow.reset();
  for (int round = 2; round <= 4; ++round) {
    turn mine(reader, operation::all_gather);
    const auto frames = reader.exchange(mine.now, {}).frames();
    ASSERT_TRUE(frames[1]);
    EXPECT_EQ(payload_from(*frames[1]), payload_of(1, round));
  }
  for (int round = 5; round <= 6; ++round) {  // at once, not at the deadline
    EXPECT_TRUE(is_deserted(reader)) << "rank 1 left call " << round << " without a word";
  }
  EXPECT_EQ(ranks.run([](shm::engine& me) { learn(me, turn(me, operation::all_gather).now); }), no_errors(2));
}

// Rank 1 is in a later call already: that is no frame of this one.
TEST(shm_exchange, a_rank_that_skipped_a_call_is_named_in_it) {
  shm_crew ranks(2);
  const auto skip = [&](int rank, int times) {
    for (int i = 0; i < times; ++i) turn(ranks.engine(rank), operation::all_gather);
  };
  skip(1, 3);
  std::string said;
  std::uint64_t missed = 0;
  const auto errors = ranks.run([&](shm::engine& me) {
    if (me.rank() == 0) {
      try {
        turn mine(me, operation::all_gather);
        me.exchange(mine.now, {});
      } catch (const left_behind& error) {
        said = error.what();
        missed = error.missed;
      }
      skip(0, 2);
    }
    turn mine(me, operation::gather_sizes);
    EXPECT_EQ(mine.now.head.sequence, 4u);
    learn(me, mine.now);
  });
  EXPECT_EQ(errors, no_errors(2));
  EXPECT_NE(said.find("all_gather #1: rank 1"), std::string::npos) << said;
  EXPECT_EQ(missed, 2u);
}

// Ranks 0 and 2 give up on rank 1, which then finds all it needs; the next call has them all.
TEST(shm_exchange, a_late_rank_is_named_and_the_next_call_works) {
  shm_crew ranks(3);
  const auto exchange = [](shm::engine& me) { learn(me, turn(me, operation::all_gather, 150ms).now); };
  EXPECT_EQ(ranks.run(exchange), no_errors(3));
  const auto errors = ranks.run([&](shm::engine& me) {
    if (me.rank() != 1) exchange(me);
  });
  for (const int rank : {0, 2}) {
    EXPECT_NE(errors[rank].find("all_gather #2: no answer from rank 1 within 0.15 s; rank 1 "), std::string::npos)
        << errors[rank];
  }
  const auto late = ranks.run([&](shm::engine& me) {
    if (me.rank() == 1) exchange(me);
  });
  EXPECT_EQ(late, no_errors(3));
  EXPECT_EQ(ranks.run(exchange), no_errors(3));
}

// The one that refuses waits for nobody; the others read its reason in its header.
TEST(shm_refuse, is_heard_by_all_and_the_group_goes_on) {
  shm_crew ranks(3);
  for (int chosen = 0; chosen < 3; ++chosen) {
    std::vector<std::string> verdicts(3);
    const auto errors = ranks.run([&](shm::engine& me) {
      turn mine(me, operation::all_gather);
      if (me.rank() != chosen) {
        verdicts[me.rank()] = me.exchange(mine.now, {}).verdict().value_or("none");
        return;
      }
      mine.now.head.tensors = {};
      mine.now.head.refusal = "it is tired";
      const auto frames = me.refuse(mine.now);
      if (!frames.empty()) verdicts[chosen] = *verdict(frames);
    });
    EXPECT_EQ(errors, no_errors(3));
    const auto name = title({.op = operation::all_gather, .sequence = 1ull + 2 * chosen});
    const auto want = name + ": rank " + std::to_string(chosen) + " refuses: it is tired";
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(verdicts[rank] == want || (rank == chosen && verdicts[rank].empty())) << verdicts[rank];
    }
    EXPECT_EQ(ranks.run([](shm::engine& me) { learn(me, turn(me, operation::gather_sizes).now); }), no_errors(3));
  }
}

// Five refusals of rank 0, more than its ring has slots, before rank 1 comes: what was posted stays, nothing else is.
TEST(shm_refuse, nobody_there_is_no_reason_to_wait) {
  shm_crew ranks(2);
  for (int i = 0; i < 5; ++i) {
    turn mine(ranks.engine(0), operation::all_gather);
    mine.now.head.refusal = "it is tired of " + std::to_string(i);
    EXPECT_TRUE(ranks.engine(0).refuse(mine.now).empty());
  }
  for (int i = 0; i < 5; ++i) {
    if (i == 4) {
      EXPECT_TRUE(is_deserted(ranks.engine(1)));
      continue;
    }
    turn mine(ranks.engine(1), operation::all_gather);
    const auto frames = ranks.engine(1).exchange(mine.now, {}).frames();
    ASSERT_TRUE(frames[0]);
    EXPECT_EQ(frames[0]->head.refusal, "it is tired of " + std::to_string(i));
  }
  EXPECT_EQ(ranks.run([](shm::engine& me) { learn(me, turn(me, operation::all_gather).now); }), no_errors(2));
}

// Calls of several threads of one rank take turns; each gets a number of its own.
TEST(shm_turns, threads_of_one_rank_do_not_mix) {
  shm_crew ranks(2);
  const auto at = make_layout(extents{40, 1000}, 0, extents{40, 7}, 1);
  const auto whole = random_bytes(at.bytes(), 5);
  const auto errors = ranks.run([&](shm::engine& me) {
    const auto inner = run_threads(3, [&](int) {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(content(gather(me, at, whole)), whole);
    });
    EXPECT_EQ(inner, no_errors(3));
  });
  EXPECT_EQ(errors, no_errors(2));
  turn last(ranks.engine(0), operation::all_gather);
  EXPECT_EQ(last.now.head.sequence, 61u);
}

}  // namespace
}  // namespace sheaf::test
