// SPDX-License-Identifier: MIT
// Data through shared memory: by segment, into the caller's memory and in steps; sums bit for bit as elsewhere; ranks
// that leave in the middle.
#include <gtest/gtest.h>

#include "core/shm_crew.hpp"
#include "core/sum.hpp"
#include "core/three_threads.hpp"
#include "shm/reduce_scatter.hpp"

namespace sheaf::test {
namespace {

// With a segment for every call on one mapping, the same with views, and with none, so in steps.
const std::vector<shm_crew::options> ways = {
    {}, {.how = views::own}, {.pool_bytes = 0}, {.how = views::own, .pool_bytes = 0}};

TEST(shm_all_gather, any_layout_any_way) {
  std::mt19937_64 draw(1);
  for (const auto& way : ways) {
    for (const int world : {2, 3, 5}) {
      shm_crew ranks(world, way);
      for (int round = 0; round < 20; ++round) {
        auto at = random_layout(draw, world, 1 + static_cast<std::int64_t>(draw() % 5));
        if (round == 0) at = make_layout(extents{2, 3}, 1, extents(world), 4);  // all are empty
        const auto whole = random_bytes(at.bytes(), draw());
        const bool given = round % 3 == 0;
        const auto errors = ranks.run([&](shm::engine& me) {
          const auto result = gather(me, at, whole, given ? allocate(at.bytes()) : memory{});
          EXPECT_EQ(content(result), whole);
        });
        EXPECT_EQ(errors, no_errors(world));
      }
    }
  }
}

// One rank has three halves of a staging buffer and a bit, in one chunk or three; the others next to nothing.
TEST(shm_all_gather, blocks_longer_than_the_staging_buffers) {
  for (const std::int64_t outer : {1, 3}) {
    const auto at =
        lopsided(3, static_cast<int>(outer % 3), (3 * shm::geometry::staging_bytes / 2 + 13) / outer, outer);
    const auto whole = random_bytes(at.bytes(), outer);
    for (const auto& way : ways) {
      shm_crew ranks(3, way);
      const auto errors = ranks.run([&](shm::engine& me) {
        EXPECT_TRUE(content(gather(me, at, whole)) == whole);
        EXPECT_TRUE(content(gather(me, at, whole, allocate(at.bytes()))) == whole);
      });
      EXPECT_EQ(errors, no_errors(3));
    }
  }
}

// Some ranks bring memory of their own, the others take a segment, in one call.
TEST(shm_all_gather, each_rank_chooses_where_its_result_lies) {
  shm_crew ranks(3, {.how = views::own});
  const auto at = make_layout(extents{2, 50}, 1, extents{50, 0, 4000}, 4);
  for (int mask = 0; mask < 8; ++mask) {
    const auto whole = random_bytes(at.bytes(), mask);
    const auto errors = ranks.run([&](shm::engine& me) {
      const bool own = mask >> me.rank() & 1;
      EXPECT_EQ(content(gather(me, at, whole, own ? allocate(at.bytes()) : memory{})), whole);
    });
    EXPECT_EQ(errors, no_errors(3));
  }
  for (int rank = 0; rank < 3; ++rank) {
    const auto text = ranks.engine(rank).describe();
    EXPECT_NE(text.find("; 0 results and"), std::string::npos) << text;
  }
}

// Finite numbers of any type: the top bit of each one's exponent is never set.
bytes numbers(dtype type, std::size_t count, std::uint64_t seed) {
  auto result = random_bytes(count, seed);
  if (is_integral(type)) return result;
  const auto unit = type == dtype::complex64 ? 4 : itemsize(type);
  for (std::size_t i = unit - 1; i < count; i += unit) result[i] &= std::byte{0xBF};
  return result;
}

struct sum_case {
  dtype type;
  reduction op;
};
const std::vector<sum_case> sum_cases = {
    {dtype::float32, reduction::sum}, {dtype::float32, reduction::mean}, {dtype::bfloat16, reduction::mean},
    {dtype::float16, reduction::sum}, {dtype::float64, reduction::mean}, {dtype::complex64, reduction::sum},
    {dtype::uint8, reduction::sum},   {dtype::int64, reduction::sum},    {dtype::float8_e5m2, reduction::mean},
};

// As sum_ranks() has it on the whole, and as the point-to-point engine does.
void expect_same_sums(shm_crew& ranks, crew& others, const layout& at, const sum_case& one, std::uint64_t seed) {
  const int world = ranks.world();
  std::vector<bytes> wholes;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < world; ++rank) wholes.push_back(numbers(one.type, at.bytes(), seed + rank));
  for (const auto& whole : wholes) sources.push_back(whole.data());
  bytes sum(at.bytes());
  sum_ranks(one.type, one.op, sources, sum.data(), sum.size());

  std::vector<bytes> elsewhere(world);
  const auto expected = others.run([&](p2p::engine& me) {
    const auto own = allocate(at.block_bytes(me.rank()));
    me.reduce_scatter(next_call(me, operation::reduce_scatter, one.type), at, one.op, copy_of(wholes[me.rank()]), own);
    elsewhere[me.rank()] = content(own);
  });
  EXPECT_EQ(expected, no_errors(world));
  for (const bool given : {false, true}) {
    const auto errors = ranks.run([&](shm::engine& me) {
      turn mine(me, operation::reduce_scatter);
      mine.now.head.tensors[0].type = one.type;
      learn(me, mine.now);
      const auto own = given ? allocate(at.block_bytes(me.rank())) : me.take_result(mine.now, at);
      me.reduce_scatter(mine.now, at, one.op, copy_of(wholes[me.rank()]), own);
      EXPECT_TRUE(content(own) == block_of(at, me.rank(), sum)) << name(one.type);
      EXPECT_TRUE(content(own) == elsewhere[me.rank()]) << name(one.type);
    });
    EXPECT_EQ(errors, no_errors(world));
  }
}

TEST(shm_reduce_scatter, owners_sum_their_rows) {
  std::mt19937_64 draw(2);
  for (const auto& way : std::span(ways).first(2)) {
    for (const int world : {2, 3, 5}) {
      shm_crew ranks(world, way);
      crew others(world, 1 << 20);
      for (const auto& one : sum_cases) {
        const auto at = random_layout(draw, world, itemsize(one.type));
        EXPECT_FALSE(ranks.engine(0).is_shared_out(at));
        expect_same_sums(ranks, others, at, one, draw());
      }
    }
  }
}

// Rank 1 owns nearly all of 400 KB: with a segment all ranks work on it, without one rank 1 does.
TEST(shm_reduce_scatter, lopsided_sums_are_shared_out) {
  for (const auto& way : ways) {
    shm_crew ranks(3, way);
    crew others(3, 1 << 20);
    std::uint64_t seed = 0;
    for (const auto& one : {sum_cases[0], sum_cases[2], sum_cases[6]}) {
      for (const std::int64_t outer : {1, 2}) {
        const auto size = itemsize(one.type);
        const auto at = make_layout(extents{outer, 1, 10}, 1, extents{1, 40'000 / size / outer, 77}, size);
        EXPECT_TRUE(ranks.engine(0).is_shared_out(at));
        expect_same_sums(ranks, others, at, one, ++seed);
      }
    }
  }
}

TEST(shm_reduce_scatter, fewer_ranks_share_out_larger_blocks_alone) {
  EXPECT_EQ(shm::worth_sharing(2), 8 * mib);
  EXPECT_EQ(shm::worth_sharing(8), mib / 2);
  EXPECT_EQ(shm::worth_sharing(500), mib / 4);
}

// Even blocks of more steps, or pieces, than there are buffers.
TEST(shm_reduce_scatter, many_steps) {
  crew others(2, 1 << 20);
  shm_crew ranks(2, {});
  for (const std::int64_t outer : {1, 3, 300}) {
    const auto at = make_layout(extents{outer, 1, 6000 / outer}, 1, extents{150, 160}, 4);
    expect_same_sums(ranks, others, at, sum_cases[0], 9);
  }
}

// Pieces are summed in slices: even blocks, and ones of which a segment is shared out, along both kinds of dims.
TEST(shm_reduce_scatter, several_threads_a_rank) {
  const three_threads each;
  crew others(2, 1 << 20);
  shm_crew ranks(2, {});
  for (const auto& sizes : {extents{150, 160}, extents{1, 309}}) {
    for (const std::int64_t outer : {1, 3}) {
      const auto at = make_layout(extents{outer, 1, 6000 / outer}, 1, sizes, 4);
      for (const auto& one : {sum_cases[0], sum_cases[1]}) expect_same_sums(ranks, others, at, one, 11);
    }
  }
  EXPECT_GT(three_threads::jobs(), 0);
}

// Sums so large that they go past the caches.
TEST(shm_reduce_scatter, past_the_caches) {
  crew others(2, 1 << 20);
  shm_crew ranks(2, {});
  const auto at = make_layout(extents{1, 1000}, 0, extents{2'200, 2'300}, 4);
  EXPECT_EQ(is_streamed(at.bytes() / 2, readers::near), is_streamed(1 << 30, readers::near));
  expect_same_sums(ranks, others, at, sum_cases[0], 12);
}

// Large enough that the ways of writing are timed: the first sum leaves its data in the caches, the second does not.
TEST(shm_reduce_scatter, every_way_of_writing) {
  crew others(3, 1 << 20);
  shm_crew ranks(3, {});
  const auto at = make_layout(extents{2, 1, 500}, 1, extents{40, 70, 60}, 4);
  for (const std::uint64_t seed : {1, 2, 3}) expect_same_sums(ranks, others, at, sum_cases[0], seed);
}

// Rank 1 fails after the exchange, with memory for a result or without; the others hear of it at once.
TEST(shm_leavers, a_rank_that_fails_between_exchange_and_data) {
  for (const auto& way : ways) {
    shm_crew ranks(3, way);
    const auto at = make_layout(extents{2, 100}, 1, extents{100, 2000, 30}, 4);
    const auto whole = random_bytes(at.bytes(), 1);
    std::vector<memory> kept(3);
    for (int round = 0; round < 6; ++round) {
      const auto errors = ranks.run([&](shm::engine& me) {
        if (me.rank() != 1) {
          gather(me, at, whole);
          return;
        }
        turn mine(me, operation::all_gather);
        learn(me, mine.now);
        if (round % 2 == 0) kept[1] = me.take_result(mine.now, at);
        throw std::bad_alloc();
      });
      for (const int rank : {0, 2}) {
        EXPECT_NE(errors[rank].find(": rank 1 "), std::string::npos) << errors[rank];
        EXPECT_NE(errors[rank].find("left this call"), std::string::npos) << errors[rank];
      }
      const auto works = ranks.run([&](shm::engine& me) {
        kept[me.rank()] = gather(me, at, whole);
        EXPECT_EQ(content(kept[me.rank()]), whole);
      });
      EXPECT_EQ(works, no_errors(3));
    }
  }
}

// The same in sums, in either form and after some steps of a large one.
TEST(shm_leavers, a_rank_that_fails_before_its_sums) {
  for (const auto& at : {make_layout(extents{4}, 0, extents{900'000, 5, 10}, 1),
                         make_layout(extents{4}, 0, extents{300'000, 310'000, 300'000}, 1)}) {
    shm_crew ranks(3);
    for (int leaver = 0; leaver < 3; ++leaver) {
      const auto scatter = [&](shm::engine& me, bool leaves) {
        turn mine(me, operation::reduce_scatter);
        learn(me, mine.now);
        const auto own = me.take_result(mine.now, at);
        if (leaves) throw std::bad_alloc();
        me.reduce_scatter(mine.now, at, reduction::sum, copy_of(bytes(at.bytes(), std::byte{2})), own);
        EXPECT_TRUE(content(own) == bytes(own.size, std::byte{6}));
      };
      const auto errors = ranks.run([&](shm::engine& me) { scatter(me, me.rank() == leaver); });
      for (int rank = 0; rank < 3; ++rank) EXPECT_NE(errors[rank], "") << rank;
      EXPECT_EQ(ranks.run([&](shm::engine& me) { scatter(me, false); }), no_errors(3));
    }
  }
}

// Ranks 0 and 2 give up in the middle; rank 1 comes after that and finds what they wrote. Nobody gets its segment.
TEST(shm_leavers, a_rank_that_comes_after_the_deadline_has_its_result) {
  shm_crew ranks(3, {.how = views::own});
  const auto at = make_layout(extents{2, 100}, 1, extents{100, 2000, 30}, 4);
  const auto whole = random_bytes(at.bytes(), 1);
  std::atomic<int> gone{0};
  memory late;
  const auto errors = ranks.run([&](shm::engine& me) {
    if (me.rank() != 1) {
      try {
        gather(me, at, whole, {}, 150ms);
      } catch (const rank_error&) {
        ++gone;
        throw;
      }
      return;
    }
    turn mine(me, operation::all_gather);
    learn(me, mine.now);
    late = me.take_result(mine.now, at);
    while (gone < 2) std::this_thread::sleep_for(1ms);
    me.all_gather(mine.now, at, block_memory(at, 1, whole), late);
  });
  for (const int rank : {0, 2})
    EXPECT_NE(errors[rank].find("no answer from rank 1"), std::string::npos) << errors[rank];
  EXPECT_EQ(errors[1], "");
  for (int round = 0; round < 5; ++round) {
    const auto other = random_bytes(at.bytes(), 2 + round);
    EXPECT_EQ(ranks.run([&](shm::engine& me) { EXPECT_EQ(content(gather(me, at, other)), other); }), no_errors(3));
  }
  EXPECT_EQ(content(late), whole);
}

}  // namespace
}  // namespace sheaf::test
