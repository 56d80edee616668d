// SPDX-License-Identifier: MIT
// How ranks come to one arena: all of them, or none and all know why. Here they are threads; see shm_forked.cpp.
#include <gtest/gtest.h>

#include "core/shm_processes.hpp"
#include "shm/socket.hpp"

namespace sheaf::test {
namespace {

// Texts in memory; `change` stands for what is different about a rank.
class memory_bulletin final : public shm::bulletin {
 public:
  std::function<std::string(const std::string& name, std::string text)> change;

  void set(const std::string& name, const std::string& text) override {
    const std::lock_guard lock(mutex_);
    texts_[name] = change ? change(name, text) : text;
  }
  std::optional<std::string> get(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const auto found = texts_.find(name);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
};

struct party {
  explicit party(int world) : outcomes(world), meetings(world) {}

  void add(int rank, const settings& with = small_pool()) {
    meetings[rank] = std::make_unique<shm::meeting>(on, rank, static_cast<int>(meetings.size()), with);
  }
  void join(int rank, std::chrono::milliseconds timeout = 20s) {
    bulletin_notices told(on, rank, timeout);
    call now;
    now.head.op = operation::all_gather;
    now.head.sequence = ++calls[rank];
    outcomes[rank] = meetings[rank]->join(told, now);
  }
  std::vector<std::string> all_join() {
    return run_threads(static_cast<int>(meetings.size()), [&](int rank) {
      if (!meetings[rank]) add(rank);
      join(rank);
    });
  }
  void expect_one_arena() {
    const int world = static_cast<int>(meetings.size());
    for (int rank = 0; rank < world; ++rank) {
      ASSERT_TRUE(outcomes[rank].place) << outcomes[rank].why_not;
      EXPECT_EQ(outcomes[rank].why_not, "");
      EXPECT_TRUE(outcomes[rank].place->has_views());
      outcomes[rank].place->staging(rank)[5] = std::byte(rank + 1);
    }
    for (int rank = 0; rank < world; ++rank) {
      for (int peer = 0; peer < world; ++peer) {
        EXPECT_EQ(outcomes[rank].place->staging(peer)[5], std::byte(peer + 1));
        ASSERT_EQ(outcomes[rank].lives[peer].has_value(), peer != rank);
        if (peer != rank) {
          EXPECT_EQ(outcomes[rank].lives[peer]->ended(), std::nullopt);
        }
      }
    }
  }
  void expect_none(const std::string& why) {
    for (const auto& one : outcomes) {
      EXPECT_FALSE(one.place);
      EXPECT_EQ(one.why_not, why);
    }
  }

  std::shared_ptr<memory_bulletin> on = std::make_shared<memory_bulletin>();
  std::vector<shm::meeting::outcome> outcomes;
  std::vector<std::unique_ptr<shm::meeting>> meetings;
  std::map<int, std::uint64_t> calls{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}};
};

int open_files() {
  int count = 0;
  for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(shm_meeting, all_come) {
  for (const int world : {2, 3, 5}) {
    party ranks(world);
    EXPECT_EQ(ranks.all_join(), no_errors(world));
    ranks.expect_one_arena();
  }
}

TEST(shm_meeting, settings_that_differ_are_an_error_on_every_rank) {
  party ranks(3);
  ranks.add(1, small_pool(4 * mib));
  const auto errors = ranks.all_join();
  for (const auto& text : errors) {
    EXPECT_EQ(text, errors[0]);
    EXPECT_NE(text.find("ranks disagree on settings: "), std::string::npos) << text;
    EXPECT_NE(text.find("SHEAF_POOL_MB=2 on ranks 0, 2; "), std::string::npos) << text;
    EXPECT_NE(text.find("SHEAF_POOL_MB=4 on rank 1"), std::string::npos) << text;
  }
}

TEST(shm_meeting, settings_may_forbid_it) {
  party ranks(2);
  auto with = small_pool();
  with.engine = "c10d";
  ranks.add(0, with);
  ranks.add(1, with);
  EXPECT_EQ(ranks.all_join(), no_errors(2));
  ranks.expect_none("SHEAF_ENGINE=c10d");
}

// A card is settings, host, pid namespace, process, user and why not, a line each.
std::function<std::string(const std::string&, std::string)> change_line(const std::string& which, int line,
                                                                        const std::string& to) {
  return [=](const std::string& name, std::string text) {
    if (!name.ends_with(which)) return text;
    std::size_t first = 0;
    for (int i = 0; i < line; ++i) first = text.find('\n', first) + 1;
    return text.replace(first, text.find('\n', first) - first, to);
  };
}

TEST(shm_meeting, ranks_that_cannot_share_memory_learn_why) {
  const std::map<int, std::string> obstacles = {{1, " is on another host than rank 0"},
                                                {2, " is in another pid namespace than rank 0"},
                                                {4, " belongs to another user than rank 0"}};
  for (const auto& [line, why] : obstacles) {
    party ranks(3);
    ranks.on->change = change_line("card/2", line, "4321");
    EXPECT_EQ(ranks.all_join(), no_errors(3));
    ranks.expect_none("rank 2" + why);
  }
}

// Who knocks is not who the card says; process 1 lives in every namespace.
TEST(shm_meeting, strangers_get_no_file) {
  party ranks(3);
  ranks.on->change = change_line("card/1", 3, "1");
  EXPECT_EQ(ranks.all_join(), no_errors(3));
  ranks.expect_none("rank 1: rank 0 sees another user or pid namespace here");
}

TEST(shm_meeting, rank_0_is_who_its_card_says) {
  party ranks(3);
  ranks.on->change = change_line("card/0", 3, "1");
  EXPECT_EQ(ranks.all_join(), no_errors(3));
  ranks.expect_none("rank 1: rank 0 is in another pid namespace");
}

TEST(shm_meeting, a_rank_that_never_comes_is_named_and_a_later_try_succeeds) {
  party ranks(3);
  for (const int rank : {0, 1}) ranks.add(rank);
  const auto errors = run_threads(2, [&](int rank) { ranks.join(rank, 200ms); });
  for (const auto& text : errors) {
    EXPECT_NE(text.find("all_gather #1: no answer from rank 2 within 0.2 s; rank 2 never came"), std::string::npos)
        << text;
  }
  EXPECT_EQ(ranks.all_join(), no_errors(3));
  ranks.expect_one_arena();
}

// Its card is there, but it does not knock before the others' deadline.
TEST(shm_meeting, a_rank_that_does_not_knock_is_named_and_a_later_try_succeeds) {
  for (const int absent : {0, 1, 2}) {
    party ranks(3);
    for (int rank = 0; rank < 3; ++rank) ranks.add(rank);
    const auto errors = run_threads(3, [&](int rank) {
      if (rank != absent) ranks.join(rank, 200ms);
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == absent) continue;
      EXPECT_NE(errors[rank].find("no answer from rank"), std::string::npos) << errors[rank];
      EXPECT_NE(errors[rank].find("rank " + std::to_string(absent) + " never came"), std::string::npos) << errors[rank];
    }
    EXPECT_EQ(ranks.all_join(), no_errors(3));
    ranks.expect_one_arena();
  }
}

// Rank 1 knocks while rank 0, which gave up on it, is away for longer than rank 1 waits for an answer: no arena, and
// both know why.
TEST(shm_meeting, rank_0_may_be_away_when_a_late_rank_knocks) {
  party ranks(2);
  for (const int rank : {0, 1}) ranks.add(rank);
  EXPECT_NE(run_threads(1, [&](int) { ranks.join(0, 100ms); })[0], "");
  const auto errors = run_threads(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(2500ms);
    ranks.join(rank);
  });
  EXPECT_EQ(errors, no_errors(2));
  ranks.expect_none("rank 1: receiving through a local socket: Resource temporarily unavailable");
}

TEST(shm_meeting, leaves_no_file_open) {
  const auto meet = [] {
    party ranks(2);
    EXPECT_EQ(ranks.all_join(), no_errors(2));
    EXPECT_TRUE(ranks.outcomes[0].place && ranks.outcomes[1].place);
  };
  meet();
  const auto before = open_files();
  for (int i = 0; i < 200; ++i) meet();
  EXPECT_EQ(open_files(), before);
}

TEST(shm_socket, carries_a_number_and_a_file) {
  const auto name = "sheaf-test-" + std::to_string(::getpid());
  EXPECT_THROW(shm::connect_to(name), std::runtime_error);
  const auto door = shm::listen_at(name);
  EXPECT_THROW(shm::listen_at(name), std::runtime_error) << "taken";
  EXPECT_THROW(shm::listen_at(std::string(200, 'x')), std::runtime_error) << "too long";
  EXPECT_FALSE(shm::accept_from(door, 1ms)) << "nobody came";
  const auto guest = shm::connect_to(name);
  const auto host = shm::accept_from(door, 1s);
  ASSERT_TRUE(host);
  EXPECT_EQ(shm::other_end(*host).process, ::getpid());
  EXPECT_EQ(shm::other_end(guest).user, ::geteuid());
  shm::send_number(guest, 17);
  EXPECT_EQ(shm::receive_number(*host), 17);
  const auto file = shm::make_memory_file(mib);
  shm::send_number(*host, 3, &file);
  shm::send_number(*host, 4, &file);
  shm::descriptor got;
  const auto before = open_files();
  EXPECT_EQ(shm::receive_number(guest, &got), 3);
  EXPECT_EQ(shm::file_bytes(got), mib);
  EXPECT_EQ(shm::receive_number(guest), 4) << "what nobody asked for is closed";
  EXPECT_EQ(open_files(), before + 1);
}

TEST(shm_socket, a_closed_end_is_an_error) {
  const auto name = "sheaf-test-" + std::to_string(::getpid());
  const auto door = shm::listen_at(name);
  const auto guest = shm::connect_to(name);
  shm::accept_from(door, 1s);
  EXPECT_THROW(shm::receive_number(guest), std::runtime_error);
  EXPECT_THROW(shm::send_number(guest, 1), std::runtime_error);
}

}  // namespace
}  // namespace sheaf::test
