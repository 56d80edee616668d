// SPDX-License-Identifier: MIT
// Ranks as processes: children of fork that meet over a folder of files. None outlives its deadline.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/shm_crew.hpp"
#include "shm/meeting.hpp"

namespace sheaf::test {

// A child that runs `body`, and is killed after a minute at the latest. Its error goes to stderr.
class child {
 public:
  explicit child(const std::function<void()>& body) : process_(::fork()) {
    if (process_ != 0) return;
    ::alarm(60);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child %d: %s\n", static_cast<int>(::getpid()), error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  child(child&& other) noexcept : process_(std::exchange(other.process_, -1)) {}
  ~child() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }

  pid_t process() const { return process_; }
  // Its exit status: 0 when all went well, 128 and the signal when one ended it.
  int wait() {
    int status = 0;
    if (::waitpid(std::exchange(process_, -1), &status, 0) < 0) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t process_;
};

// What the text says in a child, where no assertion is heard.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// A folder of its own that goes with this object, unless that is a child's copy.
class folder {
 public:
  folder() {
    std::string name = std::filesystem::temp_directory_path() / "sheaf-test-XXXXXX";
    require(::mkdtemp(name.data()) != nullptr, "mkdtemp");
    path_ = name;
  }
  folder(const folder&) = delete;
  ~folder() {
    if (maker_ == ::getpid()) std::filesystem::remove_all(path_);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  const pid_t maker_ = ::getpid();
  std::filesystem::path path_;
};

class file_bulletin final : public shm::bulletin {
 public:
  explicit file_bulletin(std::filesystem::path at) : at_(std::move(at)) {}
  void set(const std::string& name, const std::string& text) override {
    const auto draft = at_ / (flat(name) + "." + std::to_string(::getpid()));
    std::ofstream(draft) << text;
    std::filesystem::rename(draft, at_ / flat(name));
  }
  std::optional<std::string> get(const std::string& name) override {
    std::ifstream file(at_ / flat(name));
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  static std::string flat(std::string name) {
    std::replace(name.begin(), name.end(), '/', '_');
    return name;
  }
  const std::filesystem::path at_;
};

class bulletin_notices final : public notices {
 public:
  bulletin_notices(std::shared_ptr<shm::bulletin> on, int rank, std::chrono::milliseconds timeout)
      : on_(std::move(on)), rank_(rank), timeout_(timeout) {}

  std::string name() const override { return "meeting"; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void publish(const std::string& text) noexcept override { on_->set("note/" + std::to_string(rank_), text); }
  std::optional<std::string> published(int rank) noexcept override { return on_->get("note/" + std::to_string(rank)); }

 private:
  const std::shared_ptr<shm::bulletin> on_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
};

inline settings small_pool(std::size_t pool_bytes = 2 * mib) {
  settings with;
  with.pool_bytes = static_cast<std::int64_t>(pool_bytes);
  with.is_pool_given = true;
  return with;
}

// The engine of one rank that came to the meeting.
inline std::unique_ptr<shm::engine> engine_from(const std::filesystem::path& at, int rank, int world,
                                                std::size_t pool_bytes) {
  const auto on = std::make_shared<file_bulletin>(at);
  const auto told = std::make_shared<bulletin_notices>(on, rank, 20s);
  shm::meeting meet(on, rank, world, small_pool(pool_bytes));
  call first;
  auto came = meet.join(*told, first);
  require(came.place != nullptr, "no arena: " + came.why_not);
  return std::make_unique<shm::engine>(shm::engine::membership{.place = came.place,
                                                               .rank = rank,
                                                               .told = told,
                                                               .lives = std::move(came.lives),
                                                               .pool_bytes = pool_bytes,
                                                               .worth_sharing = worth_sharing});
}

// body(engine) in a process for each rank.
inline std::vector<int> run_processes(int world, std::size_t pool_bytes,
                                      const std::function<void(shm::engine&)>& body) {
  const folder place;
  std::vector<child> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] { body(*engine_from(place.path(), rank, world, pool_bytes)); });
  }
  std::vector<int> ends;
  for (auto& rank : ranks) ends.push_back(rank.wait());
  return ends;
}

}  // namespace sheaf::test
