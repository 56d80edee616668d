// SPDX-License-Identifier: MIT
// Several tensors of any types as one: packed, moved and summed as each would be by itself, and no more bytes sent.
#include "core/bundle.hpp"

#include <gtest/gtest.h>

#include <sheaf/error.hpp>

#include "core/crew.hpp"
#include "core/shm_crew.hpp"

namespace sheaf::test {
namespace {

constexpr dtype types[] = {dtype::uint8, dtype::int16, dtype::int32, dtype::int64};

// Tensor i of rank r's bundle is random bytes of seed i (a gather's), or i and r (a reduction's).
struct drawn {
  std::vector<part> parts;
  std::vector<bytes> wholes;  // of a gather
};

drawn random_parts(std::mt19937_64& draw, int world) {
  drawn all;
  const auto count = 1 + draw() % 5;
  for (std::size_t i = 0; i < count; ++i) {
    const auto type = types[draw() % 4];
    all.parts.push_back({.at = random_layout(draw, world, itemsize(type)), .type = type});
    all.wholes.push_back(random_bytes(all.parts.back().at.bytes(), draw()));
  }
  return all;
}

bundle for_gather(const drawn& all, int rank) {
  auto parts = all.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].own = copy_of(block_of(parts[i].at, rank, all.wholes[i]));
    parts[i].whole = allocate(parts[i].at.bytes());
  }
  return {rank, parts};
}

bundle for_sum(const drawn& all, int rank, std::uint64_t seed) {
  auto parts = all.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i].whole = copy_of(random_bytes(parts[i].at.bytes(), seed + 100 * i + rank));
  }
  return {rank, parts};
}

void expect_gathered(const drawn& all, const bundle& got) {
  for (std::size_t i = 0; i < all.wholes.size(); ++i) EXPECT_EQ(content(got.parts()[i].whole), all.wholes[i]) << i;
}

void expect_summed(const drawn& all, const bundle& mine, int rank, std::uint64_t seed, const memory& own) {
  for (std::size_t i = 0; i < all.parts.size(); ++i) {
    const auto& at = all.parts[i].at;
    std::vector<bytes> wholes;
    std::vector<const std::byte*> sources;
    for (std::size_t r = 0; r < at.sizes.size(); ++r) wholes.push_back(random_bytes(at.bytes(), seed + 100 * i + r));
    for (const auto& whole : wholes) sources.push_back(whole.data());
    bytes sum(at.bytes());
    sum_ranks(all.parts[i].type, reduction::sum, sources, sum.data(), sum.size());
    EXPECT_EQ(content(own.slice(mine.own_place(i), at.block_bytes(rank))), block_of(at, rank, sum)) << i;
  }
}

TEST(bundle, packed_blocks_come_back) {
  std::mt19937_64 draw(1);
  for (int round = 0; round < 100; ++round) {
    const int world = 1 + static_cast<int>(draw() % 4);
    const auto all = random_parts(draw, world);
    const auto result = for_gather(all, 0);
    for (int rank = 0; rank < world; ++rank) {
      const auto mine = for_gather(all, rank);
      bytes packed(mine.packed().sizes[rank], std::byte{7});
      mine.pack_own(packed.data());
      result.unpack(rank, packed.data());
    }
    expect_gathered(all, result);
  }
}

// What ranks with these tensors said, and what the first of them makes of it.
std::vector<std::int64_t> packed_bytes_of(const std::vector<one_or_many<record>>& by_rank) {
  call own;
  own.head.tensors = by_rank.front();
  std::vector<std::optional<frame>> frames;
  for (const auto& tensors : by_rank) frames.emplace_back().emplace().head.tensors = tensors;
  heard said;
  said.begin(own);
  said.set(std::move(frames));
  return packed_bytes(own.head.tensors, said);
}

TEST(bundle, headers_tell_how_long_packed_blocks_are) {
  std::mt19937_64 draw(3);
  for (int round = 0; round < 100; ++round) {
    const auto all = random_parts(draw, 3);
    const bundle packed(0, all.parts);
    std::vector<one_or_many<record>> by_rank(3);
    for (int rank = 0; rank < 3; ++rank) {
      for (const auto& one : all.parts) {
        const auto columns = one.at.row_bytes / static_cast<std::int64_t>(itemsize(one.type));
        by_rank[rank].push_back(
            {.type = one.type, .dim = 1, .ndim = 3, .shape = {one.at.outer, one.at.sizes[rank], columns}});
      }
    }
    EXPECT_EQ(packed_bytes_of(by_rank), packed.packed().sizes);
  }
}

TEST(bundle, headers_that_tell_of_too_much_are_refused) {
  const auto large = std::int64_t{1} << 62;
  one_or_many<record> some = {{.type = dtype::float32, .ndim = 1, .shape = {large}}};
  EXPECT_THROW(packed_bytes_of({some}), value_error);
  some[0].ndim = 2;  // of no columns
  EXPECT_EQ(packed_bytes_of({some}), std::vector<std::int64_t>{0});
  some[0] = {.type = dtype::uint8, .ndim = 1, .shape = {large}};
  some.push_back(some[0]);
  EXPECT_THROW(packed_bytes_of({some}), value_error);
}

// Any interval of an owner's packed block is what the whole of it has there.
TEST(bundle, intervals_of_packed_blocks) {
  std::mt19937_64 draw(2);
  for (int round = 0; round < 100; ++round) {
    const auto all = random_parts(draw, 3);
    const auto mine = for_sum(all, 1, round);
    for (int owner = 0; owner < 3; ++owner) {
      const auto size = mine.packed().sizes[owner];
      bytes whole(size, std::byte{7});
      mine.pack(owner, 0, size, whole.data());
      const auto first = static_cast<std::int64_t>(draw() % (size + 1));
      const auto count = static_cast<std::int64_t>(draw() % (size - first + 1));
      bytes some(count, std::byte{9});
      mine.pack(owner, first, count, some.data());
      EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + first));
      const auto run = mine.run(owner, first, count);
      EXPECT_TRUE(!run.data || content(run) == some);
    }
  }
}

TEST(bundle, too_many_bytes_are_refused) {
  const auto huge = make_layout(extents{1}, 0, extents{std::int64_t{1} << 61, std::int64_t{1} << 61}, 1);
  EXPECT_NO_THROW(bundle(0, {{huge}}));
  EXPECT_THROW(bundle(0, {{huge}, {huge}}), value_error);
}

// A channel that counts what data it sends.
class counting final : public threads::channel {
 public:
  using threads::channel::channel;
  std::unique_ptr<p2p::transfer> send(int peer, std::uint32_t tag, memory data) override {
    if (tag != p2p::frame_tag) ++messages, sent += data.size;
    return threads::channel::send(peer, tag, std::move(data));
  }
  std::size_t sent = 0;
  int messages = 0;
};

// Each rank sends its blocks to all others, and in sums each owner its rows: not a byte more than that, but for what
// fills up to 16; and up to 1 MiB in one message a peer, however many tensors there are.
TEST(bundle, bytes_sent_are_those_of_the_tensors) {
  const int world = 3;
  const auto packed = [](std::int64_t bytes) { return (bytes + 15) / 16 * 16; };  // for the next tensor's elements
  for (const std::int64_t rows : {7, 16, 100'000}) {
    auto mates = threads::team::create(world, 20s);
    std::vector<std::shared_ptr<counting>> links;
    for (int rank = 0; rank < world; ++rank) links.push_back(std::make_shared<counting>(*mates, rank, world));
    drawn all;
    for (const auto type : types) {
      all.parts.push_back(
          {.at = make_layout(extents{2, 0}, 1, extents{rows, 2 * rows, 0}, itemsize(type)), .type = type});
      all.wholes.push_back(random_bytes(all.parts.back().at.bytes(), rows));
    }
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([&, rank] {
        p2p::engine me(links[rank], settings{});
        std::size_t own = 0, others = 0;
        for (const auto& one : all.parts) {
          own += packed(one.at.block_bytes(rank));
          for (int peer = 0; peer < world; ++peer) others += peer == rank ? 0 : packed(one.at.block_bytes(peer));
        }
        const auto gathered = for_gather(all, rank);
        me.all_gather_coalesced(next_call(me, operation::all_gather_coalesced), gathered);
        expect_gathered(all, gathered);
        EXPECT_EQ(std::exchange(links[rank]->sent, 0), own * (world - 1)) << rank;
        const int messages = std::exchange(links[rank]->messages, 0);
        EXPECT_TRUE(rows > 16 || messages == (own > 0 ? world - 1 : 0)) << rank << ": " << messages;
        const auto mine = for_sum(all, rank, 5);
        const auto sums = allocate(mine.packed().sizes[rank]);
        me.reduce_scatter_coalesced(next_call(me, operation::reduce_scatter_coalesced), mine, sums);
        expect_summed(all, mine, rank, 5, sums);
        EXPECT_EQ(links[rank]->sent, others) << rank;
        const int owners = (rank != 0) + (rank != 1);  // rank 2 owns nothing
        EXPECT_TRUE(rows > 16 || links[rank]->messages == owners) << rank << ": " << links[rank]->messages;
      });
    }
    for (auto& rank : ranks) rank.join();
  }
}

TEST(bundle, through_messages) {
  std::mt19937_64 draw(3);
  for (const int world : {1, 2, 3, 5}) {
    for (const std::int64_t message_bytes : {100, 1 << 20}) {
      crew ranks(world, message_bytes);
      for (int round = 0; round < 6; ++round) {
        const auto all = random_parts(draw, world);
        const auto errors = ranks.run([&](p2p::engine& me) {
          const auto result = for_gather(all, me.rank());
          me.all_gather_coalesced(next_call(me, operation::all_gather_coalesced), result);
          expect_gathered(all, result);
          const auto mine = for_sum(all, me.rank(), round);
          const auto own = allocate(mine.packed().sizes[me.rank()]);
          me.reduce_scatter_coalesced(next_call(me, operation::reduce_scatter_coalesced), mine, own);
          expect_summed(all, mine, me.rank(), round, own);
        });
        EXPECT_EQ(errors, no_errors(world));
      }
    }
  }
}

// By segment, into the caller's memory, and in steps; small, and of several pieces with one heavy rank.
TEST(bundle, through_shared_memory) {
  std::mt19937_64 draw(4);
  for (const shm_crew::options& way : {shm_crew::options{.how = views::own}, {.how = views::own, .pool_bytes = 0}}) {
    for (const int world : {2, 3}) {
      shm_crew ranks(world, way);
      for (int round = 0; round < 12; ++round) {
        auto all = random_parts(draw, world);
        if (round % 3 == 2) {
          extents sizes(world, 9);
          sizes[round % world] = 300'000;
          all.parts.push_back({.at = make_layout(extents{2, 0}, 1, sizes, 2), .type = dtype::int16});
          all.wholes.push_back(random_bytes(all.parts.back().at.bytes(), round));
        }
        const auto errors = ranks.run([&](shm::engine& me) {
          auto result = for_gather(all, me.rank());
          {
            turn mine(me, operation::all_gather_coalesced);
            learn(me, mine.now);
            if (round % 2 == 0) {
              const auto whole = me.take_result(mine.now, result.wholes());
              for (std::size_t i = 0; i < all.parts.size(); ++i) {
                result.put_whole(i, whole.slice(result.whole_place(i), all.parts[i].at.bytes()));
              }
            }
            me.all_gather_coalesced(mine.now, result);
          }
          expect_gathered(all, result);
          turn mine(me, operation::reduce_scatter_coalesced);
          learn(me, mine.now);
          const auto sum = for_sum(all, me.rank(), round);
          auto own = me.take_result(mine.now, sum.packed());
          if (!own.data) own = allocate(sum.packed().sizes[me.rank()]);
          me.reduce_scatter_coalesced(mine.now, sum, own);
          expect_summed(all, sum, me.rank(), round, own);
        });
        EXPECT_EQ(errors, no_errors(world));
      }
    }
  }
}

}  // namespace
}  // namespace sheaf::test
