// SPDX-License-Identifier: MIT
#include "torch/group.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <sheaf/error.hpp>
#include <sheaf/group.hpp>
#include <thread>

#include "c10d/env.hpp"
#include "c10d/registry.hpp"
#include "core/bundle.hpp"
#include "core/work.hpp"
#include "threads/team.hpp"
#include "torch/errors.hpp"

namespace sheaf {
namespace {

constexpr auto default_name = "0";

// This process alone.
class solo final : public engine {
 public:
  int rank() const override { return 0; }
  int world() const override { return 1; }
  void number(call& now) override { now.head.sequence = ++sequence_; }
  bool checks_sized_calls() const override { return false; }
  const heard& exchange(const call& now, const payload& data) override {
    thread_local heard own;
    const auto bytes = data.written(now.numbers);
    own.begin(now);
    own.set({frame{now.head, *bytes, bytes}});
    return own;
  }
  std::vector<std::optional<frame>> refuse(const call& now) override { return {frame{now.head, {}}}; }
  void report(const call&, const std::string&) override {}
  void all_gather(const call&, const layout&, memory own, memory result) override { copy(own, result); }
  void reduce_scatter(const call&, const layout&, reduction, memory whole, memory own) override { copy(whole, own); }
  void all_gather_coalesced(const call&, const bundle& all) override {
    for (const auto& one : all.parts()) copy(one.own, one.whole);
  }
  void reduce_scatter_coalesced(const call&, const bundle& all, memory own) override {
    all.pack(0, 0, static_cast<std::int64_t>(own.size), own.data);
  }

 private:
  static void copy(const memory& from, const memory& to) { std::copy_n(from.data, from.size, to.data); }
  std::atomic<std::uint64_t> sequence_{0};
};

std::string no_cuda() {
  return find_work(device_type::cuda) ? "none (the group has no backend for CUDA tensors)"
                                      : "none (this build carries CPU tensors)";
}

}  // namespace

std::shared_ptr<engine> find_engine(const std::string& group) {
  if (group.empty()) {
    static const auto alone = std::make_shared<solo>();
    return alone;
  }
  if (env::is_name(group)) return env::find(group);
  return threads::is_name(group) ? threads::find(group) : c10d_engine::find(group);
}

std::tuple<std::string, std::string> describe_engine(const std::string& group) {
  if (group.empty()) return {"none (this process is alone)", "none (this process is alone)"};
  if (threads::is_name(group)) {
    return {"threads (ranks are threads of one process)", "none (threads carry CPU tensors)"};
  }
  if (env::is_name(group)) return {env::describe(group), "none (groups from the environment carry CPU tensors)"};
  const auto info = c10d_engine::inspect(group);
  return {info.cpu_engine.empty() ? "none (the group has no backend for CPU tensors)" : info.cpu_engine,
          info.cuda_engine.empty() ? no_cuda() : info.cuda_engine};
}

group::group(std::string name, std::shared_ptr<void> alive)
    : name_(std::move(name)), is_default_(false), alive_(std::move(alive)) {}

group group::named(std::string name) { return group(std::move(name)); }

group group::from_env(std::chrono::milliseconds timeout) {
  return translated([&] {
    auto joined = env::join(timeout);
    return group(std::move(joined.name), std::move(joined.alive));
  });
}

std::vector<group> group::threads(int world, std::chrono::milliseconds timeout) {
  return translated([&] {
    const auto team = threads::team::create(world, timeout);
    std::vector<group> ranks;
    for (int rank = 0; rank < world; ++rank) ranks.push_back(group(team->name(rank), team));
    return ranks;
  });
}

std::string group::name() const {
  if (!is_default_) return name_;
  return c10d_engine::has_group(default_name) ? default_name : "";
}

int group::rank() const {
  return translated([&] { return find_engine(name())->rank(); });
}

int group::world() const {
  return translated([&] { return find_engine(name())->world(); });
}

std::string group::engine() const {
  return translated([&] {
    const auto [cpu, cuda] = describe_engine(name());
    return "cpu: " + cpu + "; cuda: " + cuda;
  });
}

void spawn(int world, const std::function<void(const group&)>& body, std::chrono::milliseconds timeout) {
  const auto team = translated([&] { return threads::team::create(world, timeout); });
  std::vector<std::exception_ptr> errors(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      std::string why = "it is done";
      try {
        body(group::named(team->name(rank)));
      } catch (const std::exception& error) {
        errors[rank] = std::current_exception();
        why = error.what();
      } catch (...) {
        errors[rank] = std::current_exception();
        why = "it threw";
      }
      team->leave(rank, why);
    });
  }
  for (auto& rank : ranks) rank.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace sheaf
