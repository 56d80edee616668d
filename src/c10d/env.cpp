// SPDX-License-Identifier: MIT
#include "c10d/env.hpp"

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sheaf/error.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "c10d/store_bulletin.hpp"
#include "shm/engine.hpp"
#include "shm/meeting.hpp"

namespace sheaf::env {
namespace {

constexpr std::string_view prefix = "env:";

struct place {
  int rank;
  int world;
  std::string host;
  int port;
};

std::string text_of(const char* name) {
  const char* value = std::getenv(name);
  if (value && *value) return value;
  throw value_error("group::from_env: " + std::string(name) +
                    " is not set; torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or set them by hand");
}

int number_of(const char* name, int least, int most) {
  const auto text = text_of(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc{} && end == text.data() + text.size() && value >= least && value <= most) return value;
  throw value_error("group::from_env: " + std::string(name) + "=" + text + " means nothing: expected a number from " +
                    std::to_string(least) + " to " + std::to_string(most));
}

place read_place() {
  const int world = number_of("WORLD_SIZE", 1, 1 << 20);
  return {number_of("RANK", 0, world - 1), world, text_of("MASTER_ADDR"), number_of("MASTER_PORT", 1, 65535)};
}

// torchrun keeps the store of MASTER_PORT in its own process, and keeps it over restarts; elsewhere rank 0 makes it.
c10::intrusive_ptr<c10d::Store> open_store(const place& at, int id, std::chrono::milliseconds timeout) {
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(at.port);
  options.isServer = at.rank == 0 && !(agent && std::string_view(agent) == "True");
  options.waitWorkers = false;
  options.timeout = timeout;
  // One server for all groups of this process.
  static std::mutex mutex;
  static std::map<int, c10::intrusive_ptr<c10d::TCPStore>> servers;
  const std::lock_guard lock(mutex);
  auto& store = servers[at.port];
  if (!store) store = c10::make_intrusive<c10d::TCPStore>(at.host, options);
  const auto part = std::string("sheaf/") + (restarts ? restarts : "0") + "/" + std::to_string(id);
  return c10::make_intrusive<c10d::PrefixStore>(part, store);
}

class store_notices final : public notices {
 public:
  store_notices(c10::intrusive_ptr<c10d::Store> store, int rank, std::string name, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(rank), name_(std::move(name)), timeout_(timeout) {}

  std::string name() const override { return name_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void publish(const std::string& text) noexcept override {
    try {
      store_->set("note/" + std::to_string(rank_), text);
    } catch (const std::exception&) {
      // The store may be gone with its process: the error this text is for says so.
    }
  }
  std::optional<std::string> published(int rank) noexcept override {
    try {
      return c10d_engine::store_bulletin(store_).get("note/" + std::to_string(rank));
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const std::string name_;
  const std::chrono::milliseconds timeout_;
};

struct roll {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<shm::engine>> groups;
  int last = 0;
};

// Never destroyed: groups may be asked for while the process ends.
roll& all_groups() {
  static auto* all = new roll;
  return *all;
}

int next_id() {
  const std::lock_guard lock(all_groups().mutex);
  return ++all_groups().last;
}

}  // namespace

membership join(std::chrono::milliseconds timeout) {
  const auto at = read_place();
  if (at.world == 1) return {};
  const auto with = read_settings();
  const int id = next_id();
  const auto name = std::string(prefix) + std::to_string(id);
  try {
    const auto store = open_store(at, id, timeout);
    const auto told = std::make_shared<store_notices>(store, at.rank, name, timeout);
    shm::meeting all(std::make_shared<c10d_engine::store_bulletin>(store), at.rank, at.world, with);
    auto met = all.join(*told, call{.timeout = timeout});
    if (!met.place) {
      throw value_error("group::from_env joins processes that share memory, and these do not: " + met.why_not);
    }
    const auto made = std::make_shared<shm::engine>(shm::engine::membership{
        met.place, at.rank, told, std::move(met.lives), static_cast<std::size_t>(with.pool_bytes)});
    const std::lock_guard lock(all_groups().mutex);
    all_groups().groups[name] = made;
    return {name, made};
  } catch (const c10::Error& error) {
    throw rank_error("group::from_env: no store at " + at.host + ":" + std::to_string(at.port) + ": " +
                     error.what_without_backtrace());
  }
}

bool is_name(const std::string& group) { return group.starts_with(prefix); }

namespace {

std::shared_ptr<shm::engine> find_shared(const std::string& group) {
  const std::lock_guard lock(all_groups().mutex);
  const auto found = all_groups().groups.find(group);
  auto alive = found == all_groups().groups.end() ? nullptr : found->second.lock();
  if (!alive) throw value_error("there is no group \"" + group + "\"");
  return alive;
}

}  // namespace

std::shared_ptr<engine> find(const std::string& group) { return find_shared(group); }

std::string describe(const std::string& group) { return find_shared(group)->describe(); }

}  // namespace sheaf::env
