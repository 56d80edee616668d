// SPDX-License-Identifier: MIT
// Every case with ranks as threads, and what only groups of threads do. A test is one case at all world sizes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sheaf/sheaf.hpp>
#include <string_view>
#include <thread>

#include "cpp/cases.hpp"

namespace sheaf::test {
namespace {

using namespace std::chrono_literals;

// Settings are read when a group is made.
class setting {
 public:
  setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~setting() { ::unsetenv(name_); }
  setting(const setting&) = delete;
  setting& operator=(const setting&) = delete;

 private:
  const char* name_;
};

void run_at_every_world_size(const test_case& one) {
  for (const int world : {1, 2, 3, 5}) {
    try {
      spawn(world, one.body);
    } catch (const std::exception& error) {
      ADD_FAILURE() << one.name << " at W = " << world << ": " << error.what();
      return;
    }
  }
}

class on_threads : public ::testing::TestWithParam<test_case> {};

TEST_P(on_threads, as_they_come) { run_at_every_world_size(GetParam()); }

std::string test_name(const ::testing::TestParamInfo<test_case>& info) {
  std::string name = info.param.name;
  for (auto& letter : name) {
    if (letter == '/') letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(cases, on_threads, ::testing::ValuesIn(all_cases()), test_name);

TEST(threads, every_case_in_short_messages) {
  const setting split("SHEAF_MESSAGE_BYTES", "1000");
  for (const auto& one : all_cases()) {
    if (!std::string_view(one.name).starts_with("deadline/")) run_at_every_world_size(one);  // those wait for seconds
  }
}

TEST(threads, every_case_with_headers_compared) {
  const setting check("SHEAF_CHECK", "1");
  for (const auto& one : all_cases()) run_at_every_world_size(one);
}

TEST(threads, digest_is_the_same_on_every_rank_and_run) {
  std::vector<std::string> digests(3);
  for (int run = 0; run < 2; ++run) {
    const auto before = digests[0];
    spawn(3, [&](const group& me) { digests[me.rank()] = digest_of_sums(me); });
    EXPECT_EQ(digests[0], digests[1]);
    EXPECT_EQ(digests[0], digests[2]);
    EXPECT_TRUE(run == 0 || digests[0] == before);
  }
}

TEST(threads, spawn_rethrows_the_lowest_ranks_error) {
  const auto body = [](const group& me) {
    if (me.rank() > 0) throw std::out_of_range("rank " + std::to_string(me.rank()));
  };
  try {
    spawn(3, body);
    FAIL() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "rank 1");
  }
}

TEST(threads, a_rank_that_throws_ends_its_peers_waits) {
  const auto body = [](const group& me) {
    if (me.rank() == 1) throw std::out_of_range("tired");
    all_gather(at::ones({2}), {.group = me});
  };
  try {
    spawn(2, body, 30s);
    FAIL() << "nothing was thrown";
  } catch (const c10::DistBackendError& error) {
    EXPECT_NE(std::string(error.what()).find("lost rank 1"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("tired"), std::string::npos) << error.what();
  }
}

TEST(threads, groups_live_as_long_as_one_of_their_ranks) {
  auto ranks = group::threads(2);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1].rank(), 1);
  EXPECT_EQ(ranks[1].world(), 2);
  std::vector<at::Tensor> results(2);
  std::thread peer([&] { results[1] = all_gather(at::full({1}, 1), {.group = ranks[1]}).tensor; });
  results[0] = all_gather(at::full({2}, 0), {.group = ranks[0]}).tensor;
  peer.join();
  for (const auto& result : results) EXPECT_TRUE(at::equal(result, at::tensor({0.f, 0.f, 1.f}).to(result.dtype())));

  const auto name = ranks[0].name();
  ranks.pop_back();
  EXPECT_EQ(group::named(name).world(), 2);
  ranks.clear();
  EXPECT_THROW(group::named(name).world(), c10::ValueError);
}

TEST(threads, groups_do_not_disturb_each_other) {
  auto first = group::threads(2);
  auto second = group::threads(2);
  const auto body = [&](int rank) {
    for (int call = 0; call < 50; ++call) {
      const auto x = at::full({rank + 1}, 10 * call + rank, at::kLong);
      const auto a = all_gather(x, {.group = first[rank]}).tensor;
      const auto b = all_gather(x + 1000, {.group = second[rank]}).tensor;
      EXPECT_TRUE(at::equal(a + 1000, b));
      EXPECT_EQ(a[2].item<std::int64_t>(), 10 * call + 1);
    }
  };
  std::thread peer(body, 1);
  body(0);
  peer.join();
}

TEST(threads, groups_in_different_orders_end_at_the_deadline) {
  auto first = group::threads(2, 500ms);
  auto second = group::threads(2, 500ms);
  const auto body = [&](int rank) {
    const auto& mine = (rank == 0 ? first : second)[rank];
    try {
      all_gather(at::ones({2}), {.group = mine});
      ADD_FAILURE() << "rank " << rank << " heard of the other group";
    } catch (const c10::DistBackendError& error) {
      const auto other = std::to_string(1 - rank);
      const std::string text = error.what();
      EXPECT_NE(text.find("no answer from rank " + other + " within 0.5 s; rank " + other + " never came"),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("This rank is in all_gather #1 (float32 [2], dim 0) of group \"threads:"), std::string::npos)
          << text;
    }
  };
  std::thread peer(body, 1);
  body(0);
  peer.join();
}

TEST(threads, a_group_needs_a_rank_and_settings_that_mean_something) {
  EXPECT_THROW(group::threads(0), c10::ValueError);
  EXPECT_THROW(spawn(-1, [](const group&) {}), c10::ValueError);
  const setting nonsense("SHEAF_MESSAGE_BYTES", "many");
  EXPECT_THROW(group::threads(2), c10::ValueError);
}

TEST(threads, the_groups_timeout_holds_where_the_call_has_none) {
  auto ranks = group::threads(2, 200ms);
  try {
    all_gather(at::ones({2}), {.group = ranks[0]});
    FAIL() << "nothing was thrown";
  } catch (const c10::DistBackendError& error) {
    EXPECT_NE(std::string(error.what()).find("no answer from rank 1 within 0.2 s; rank 1 never came"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace sheaf::test
