// SPDX-License-Identifier: MIT
// Segments and who may use them again; results that are written to; memory that is used again.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "core/shm_crew.hpp"
#include "shm/written.hpp"

namespace sheaf::test {
namespace {

// Pools of all ranks of one group, without an engine around them.
struct pools {
  explicit pools(int world, std::size_t limit, std::size_t segment_bytes = 4 * mib)
      : shape{world, segment_bytes}, file(shm::make_memory_file(shape.bytes())) {
    for (int rank = 0; rank < world; ++rank) {
      each.push_back(std::make_shared<shm::pool>(std::make_shared<shm::arena>(file, shape), rank, limit));
    }
  }

  shm::census census() const {
    each[0]->write_resident(*frame, 0);
    shm::census all{~std::uint64_t{0}, frame->resident_pages};
    for (const auto& one : each) all.unused &= one->unused();
    return all;
  }
  // Every rank's choice of one call.
  std::vector<std::optional<int>> choose(std::size_t wanted) {
    const auto all = census();
    std::vector<std::optional<int>> chosen;
    for (const auto& one : each) chosen.push_back(one->choose(all, wanted));
    return chosen;
  }
  std::optional<int> choose_one(std::size_t wanted) {
    const auto chosen = choose(wanted);
    for (const auto& one : chosen) EXPECT_EQ(one, chosen[0]);
    return chosen[0];
  }
  void release(int segment) {
    for (const auto& one : each) one->release(segment);
  }
  std::size_t file_resident() const {
    struct stat about{};
    EXPECT_EQ(::fstat(file.number(), &about), 0);
    return static_cast<std::size_t>(about.st_blocks) * 512;
  }

  shm::geometry shape;
  shm::descriptor file;
  std::vector<std::shared_ptr<shm::pool>> each;
  std::unique_ptr<shm::slot> frame = std::make_unique<shm::slot>();  // rank 0's
};

// Ranks drop what they chose in any order: all choose alike, and never what one of them still holds.
TEST(shm_pool, all_ranks_choose_alike_and_nothing_that_is_held) {
  std::mt19937_64 draw(1);
  pools group(3, 40 * mib);
  std::vector<std::vector<int>> held(3);
  int given = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto segment = group.choose_one(1 + draw() % (2 * mib));
    if (segment) {
      ++given;
      for (auto& mine : held) {
        ASSERT_EQ(std::count(mine.begin(), mine.end(), *segment), 0) << "round " << round;
        mine.push_back(*segment);
      }
    }
    for (int rank = 0; rank < 3; ++rank) {
      auto& mine = held[rank];
      std::shuffle(mine.begin(), mine.end(), draw);
      for (auto drops = draw() % 3; drops > 0 && !mine.empty(); --drops) {
        group.each[rank]->release(mine.back());
        mine.pop_back();
      }
    }
  }
  EXPECT_GT(given, 500);
}

TEST(shm_pool, a_segment_comes_back_when_the_last_rank_has_dropped_it) {
  pools group(3, 4 * mib);
  const auto first = group.choose_one(mib);
  ASSERT_TRUE(first);
  group.each[2]->release(*first);
  group.each[0]->release(*first);
  const auto second = group.choose_one(mib);
  ASSERT_TRUE(second);
  EXPECT_NE(second, first) << "rank 1 has it still";
  group.each[1]->release(*first);
  EXPECT_EQ(group.choose_one(mib), first) << "warm, and nobody's";
}

TEST(shm_pool, keeps_its_limit) {
  pools group(2, 4 * mib);
  EXPECT_EQ(group.choose_one(4 * mib + 1), std::nullopt) << "longer than a segment";
  std::vector<int> held;
  for (int i = 0; i < 4; ++i) held.push_back(group.choose_one(mib).value());
  EXPECT_EQ(std::set<int>(held.begin(), held.end()).size(), 4u);
  EXPECT_EQ(group.choose_one(1), std::nullopt);
  EXPECT_EQ(group.each[1]->count().used, 4);
  group.release(held[2]);
  EXPECT_EQ(group.choose_one(mib), held[2]);
}

TEST(shm_pool, there_are_no_more_than_all_segments) {
  pools group(2, 4 * mib);
  for (int i = 0; i < shm::segment_count; ++i) EXPECT_TRUE(group.choose_one(1));
  EXPECT_EQ(group.choose_one(1), std::nullopt);
}

// The best fit: the smallest that is large enough, else the one that must grow least.
TEST(shm_pool, takes_the_warm_segment_that_fits) {
  pools group(2, 100 * mib);
  const auto large = group.choose_one(3 * mib).value();
  const auto small = group.choose_one(mib).value();
  group.release(large);
  group.release(small);
  EXPECT_EQ(group.choose_one(mib / 2), small);
  EXPECT_EQ(group.choose_one(2 * mib), large);
}

void fill(pools& group, int segment, std::size_t count) {
  const shm::arena place(group.file, group.shape);
  std::memset(place.shared(segment), 1, count);
}

TEST(shm_pool, gives_memory_back_over_its_limit) {
  pools group(2, 4 * mib);
  const auto small = group.choose_one(2 * mib).value();
  const auto other = group.choose_one(2 * mib).value();
  for (const int segment : {small, other}) fill(group, segment, 2 * mib);
  const auto before = group.file_resident();
  EXPECT_GE(before, 4 * mib);
  for (const int segment : {small, other}) group.release(segment);
  const auto large = group.choose_one(3 * mib).value();  // one of them grows, so the other goes
  fill(group, large, 3 * mib);
  EXPECT_LT(group.file_resident(), before);
  EXPECT_LE(group.each[0]->count().resident, 4 * mib);
  group.release(large);
  EXPECT_EQ(group.choose_one(2 * mib), large) << "the other one has nothing left";
}

TEST(shm_pool, gives_back_what_was_not_used_for_long) {
  pools group(2, 100 * mib);
  const auto rare = group.choose_one(4 * mib).value();
  fill(group, rare, 4 * mib);
  group.release(rare);
  const auto before = group.file_resident();
  const auto held = group.choose_one(mib).value();  // takes `rare`, which is warm; the next ones another
  EXPECT_EQ(held, rare);
  std::vector<int> others{group.choose_one(mib).value()};
  group.release(held);
  EXPECT_EQ(group.file_resident(), before);
  for (int i = 0; i < 300; ++i) {
    group.release(others.back());
    others.push_back(group.choose_one(mib).value());
    EXPECT_NE(others.back(), rare);
  }
  EXPECT_LE(group.file_resident() + 4 * mib, before);
}

TEST(shm_written, pages_that_were_written_go_and_the_others_stay) {
  const auto page = shm::page_bytes();
  const auto file = shm::make_memory_file(200 * page);
  const shm::mapping shared(file, 0, 200 * page, shm::mapping::kind::shared);
  const shm::mapping view(file, 0, 200 * page, shm::mapping::kind::copied);
  std::memset(shared.data(), 1, 200 * page);
  EXPECT_EQ(std::accumulate(view.data(), view.data() + 200 * page, 0,
                            [](int sum, std::byte one) { return sum + std::to_integer<int>(one); }),
            static_cast<int>(200 * page));
  for (std::size_t i = 3; i < 190; i += 2) view.data()[i * page + i] = std::byte{7};  // more runs than one scan returns
  view.data()[199 * page] = std::byte{7};
  const auto given_back = shm::discard_written(view.data(), 199 * page - 5);
  EXPECT_TRUE(given_back == 94 || given_back == 199)
      << given_back.value_or(0) << " (199: the kernel does not tell which)";
  EXPECT_EQ(std::memcmp(view.data(), shared.data(), 199 * page), 0);
  EXPECT_EQ(view.data()[199 * page], std::byte{7}) << "behind the last byte";
  EXPECT_EQ(shm::discard_written(view.data() + 199 * page, 1), 1u);
  EXPECT_EQ(shm::discard_written(view.data(), 0), 0u);
}

TEST(shm_written, locked_pages_go_too) {
  const auto page = shm::page_bytes();
  const auto file = shm::make_memory_file(20 * page);
  const shm::mapping shared(file, 0, 20 * page, shm::mapping::kind::shared);
  for (const bool marked : {false, true}) {
    const shm::mapping view(file, 0, 20 * page, shm::mapping::kind::copied);
    const auto marks = marked ? shm::write_marks(view.data(), 20 * page) : shm::write_marks();
    if (::mlock(view.data() + 5 * page, 10 * page) != 0) GTEST_SKIP() << "nothing may be locked here";
    std::memset(shared.data(), 1, 20 * page);
    view.data()[3 * page] = view.data()[7 * page] = view.data()[17 * page] = std::byte{7};
    const auto given_back = shm::discard_written(view.data(), 20 * page, marks);
    if (!given_back) GTEST_SKIP() << "the kernel (before Linux 5.18) gives no locked page back";
    EXPECT_EQ(std::memcmp(view.data(), shared.data(), 20 * page), 0);
  }
}

// In turns: some pages are written, by this process or for it by the kernel, or are left alone; all go that were, and
// all are read afterwards, which brings them back. Marks that came before pages, and with them, find no others.
TEST(shm_written, marks_find_what_was_written_in_every_turn) {
  const auto page = shm::page_bytes();
  constexpr std::size_t pages = 300;
  const auto file = shm::make_memory_file(pages * page);
  const shm::mapping shared(file, 0, pages * page, shm::mapping::kind::shared);
  const shm::mapping view(file, 0, pages * page, shm::mapping::kind::copied);
  const shm::write_marks marks(view.data(), pages * page);
  if (!marks) GTEST_SKIP() << "the kernel sets no marks here";
  const shm::descriptor zeros(::open("/dev/zero", O_RDONLY));
  std::mt19937 random(1);
  for (int turn = 0; turn < 50; ++turn) {
    std::memset(shared.data(), 1 + turn, pages * page);
    std::set<std::size_t> written;
    for (int i = 0; i < turn % 5 * 40; ++i) {
      const auto which = random() % pages;
      auto* at = view.data() + which * page + random() % page;
      if (i % 7 == 0) {
        ASSERT_EQ(::read(zeros.number(), at, 1), 1);
      } else {
        *at = std::byte{200};
      }
      written.insert(which);
    }
    ASSERT_EQ(shm::discard_written(view.data(), pages * page, marks), written.size()) << "turn " << turn;
    ASSERT_EQ(std::memcmp(view.data(), shared.data(), pages * page), 0) << "turn " << turn;
    if (turn % 10 == 9) {
      ASSERT_EQ(::madvise(shared.data(), pages * page, MADV_REMOVE), 0);  // as the pool gives memory back
    }
  }
}

TEST(shm_mapping, a_memory_file_cannot_change_its_size) {
  const auto file = shm::make_memory_file(mib);
  EXPECT_NE(::ftruncate(file.number(), 2 * mib), 0);
  EXPECT_NE(::ftruncate(file.number(), 0), 0);
  EXPECT_EQ(shm::file_bytes(file), mib);
  EXPECT_THROW(shm::arena(file, {2, mib}), std::runtime_error) << "not the size of such an arena";
}

// 64 pages a result, so that one written page does not make the next results private.
const layout pages_64 = make_layout(extents{1, 1}, 0, extents{100'000, 64 * 4096 - 100'000}, 1);

TEST(shm_results, what_one_rank_writes_no_other_sees_and_no_later_result_shows) {
  shm_crew ranks(2, {.how = views::own});
  std::vector<std::byte*> first(2);
  for (int round = 0; round < 4; ++round) {
    const auto whole = random_bytes(pages_64.bytes(), round);
    std::vector<memory> results(2);
    const auto errors = ranks.run([&](shm::engine& me) { results[me.rank()] = gather(me, pages_64, whole); });
    EXPECT_EQ(errors, no_errors(2));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(content(results[rank]), whole) << "round " << round;
      if (round == 0) first[rank] = results[rank].data;
      EXPECT_EQ(results[rank].data, first[rank]) << "the same segment again";
    }
    auto changed = whole;
    for (std::size_t i = 5000; i < 5100; ++i) changed[i] = results[0].data[i] = std::byte{0xEE};
    EXPECT_EQ(content(results[0]), changed);
    EXPECT_EQ(content(results[1]), whole);
  }
}

TEST(shm_results, a_held_result_does_not_change_and_its_segment_is_not_given_twice) {
  for (const auto how : {views::none, views::own}) {
    shm_crew ranks(2, {.how = how});
    std::vector<std::vector<memory>> held(2);
    std::vector<bytes> wholes;
    for (int round = 0; round < 10; ++round) {
      wholes.push_back(random_bytes(pages_64.bytes(), round));
      const auto errors = ranks.run([&](shm::engine& me) {
        held[me.rank()].push_back(gather(me, pages_64, wholes.back()));
        if (me.rank() == 1 && round % 2 == 1) held[1].back() = {};  // rank 0 has it still
      });
      EXPECT_EQ(errors, no_errors(2));
    }
    for (int round = 0; round < 10; ++round) EXPECT_EQ(content(held[0][round]), wholes[round]);
    EXPECT_NE(ranks.engine(0).describe().find("; 10 results and"), std::string::npos) << ranks.engine(0).describe();
    held = {};
    EXPECT_NE(ranks.engine(0).describe().find("; 0 results and"), std::string::npos) << ranks.engine(0).describe();
  }
}

TEST(shm_results, live_longer_than_their_engine) {
  const auto whole = random_bytes(pages_64.bytes(), 1);
  std::vector<memory> results(2);
  {
    shm_crew ranks(2, {.how = views::own});
    EXPECT_EQ(ranks.run([&](shm::engine& me) { results[me.rank()] = gather(me, pages_64, whole); }), no_errors(2));
  }
  for (const auto& result : results) {
    EXPECT_EQ(content(result), whole);
    std::memset(result.data, 3, result.size);
  }
}

// After a result that was written all over, the next ones of that size are private memory, and as right.
TEST(shm_results, that_are_mostly_written_become_private) {
  shm_crew ranks(2, {.how = views::own});
  for (int round = 0; round < 3; ++round) {
    const auto whole = random_bytes(pages_64.bytes(), round);
    const auto errors = ranks.run([&](shm::engine& me) {
      const auto result = gather(me, pages_64, whole);
      EXPECT_EQ(content(result), whole);
      const auto* views = ranks.place(me.rank()).view(0);
      const auto* end = views + shm::segment_count * ranks.place(me.rank()).shape().segment_bytes;
      const bool is_view = result.data >= views && result.data < end;
      EXPECT_EQ(is_view, round == 0 || me.rank() == 1);
      if (me.rank() == 0) std::memset(result.data, 9, result.size);
    });
    EXPECT_EQ(errors, no_errors(2));
  }
}

TEST(shm_warm_memory, is_used_again_within_its_limit) {
  const auto warm = std::make_shared<warm_memory>(mib);
  auto first = warm->take(300 * kib);
  const auto* data = first.data;
  EXPECT_EQ(first.size, 300 * kib);
  EXPECT_NE(warm->take(300 * kib).data, data);
  first = {};
  EXPECT_EQ(warm->take(290 * kib).data, data) << "the last one back";
  EXPECT_GE(warm->held(), 600 * kib);
  const auto small = warm->take(kib);
  EXPECT_NE(small.data, data) << "too large for that";
  std::vector<memory> many;
  for (int i = 0; i < 10; ++i) many.push_back(warm->take(300 * kib));
  many.clear();
  EXPECT_LE(warm->held(), mib);
  EXPECT_GT(warm->held(), 0u);
  warm->take(5 * mib);
  EXPECT_LE(warm->held(), mib) << "longer than all of it";
}

TEST(shm_warm_memory, outlives_what_it_came_from) {
  auto warm = std::make_shared<warm_memory>(mib);
  const auto block = warm->take(100);
  warm.reset();
  std::memset(block.data, 1, block.size);
  EXPECT_EQ(content(block), bytes(100, std::byte{1}));
}

}  // namespace
}  // namespace sheaf::test
