// SPDX-License-Identifier: MIT
// Ranks as threads over the shared memory engine: on one mapping, or each with views of its own, as processes have
// them.
#pragma once

#include <map>
#include <mutex>
#include <sheaf/error.hpp>

#include "core/crew.hpp"
#include "core/verdict.hpp"
#include "shm/engine.hpp"

namespace sheaf::test {

inline constexpr std::size_t kib = 1024;
inline constexpr std::size_t mib = 1024 * kib;

// What the ranks tell each other, in memory.
struct wall {
  std::mutex mutex;
  std::map<int, std::string> notes;
};

class wall_notices final : public notices {
 public:
  wall_notices(std::shared_ptr<wall> on, int rank, std::chrono::milliseconds timeout)
      : on_(std::move(on)), rank_(rank), timeout_(timeout) {}

  std::string name() const override { return "crew"; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void publish(const std::string& text) noexcept override {
    const std::lock_guard lock(on_->mutex);
    on_->notes[rank_] = text;
  }
  std::optional<std::string> published(int rank) noexcept override {
    const std::lock_guard lock(on_->mutex);
    const auto found = on_->notes.find(rank);
    return found == on_->notes.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  const std::shared_ptr<wall> on_;
  const int rank_;
  const std::chrono::milliseconds timeout_;
};

// body(rank) on a thread for each rank; the text of what it threw, or "".
inline std::vector<std::string> run_threads(int world, const std::function<void(int)>& body) {
  std::vector<std::string> errors(world);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[rank] = error.what();
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  return errors;
}

enum class views { none, own };

// A block of which sums are shared out in these tests, whatever the number of ranks.
constexpr std::int64_t worth_sharing = std::int64_t{256} << 10;

class shm_crew {
 public:
  struct options {
    views how = views::none;
    std::size_t pool_bytes = 16 * mib;
    std::size_t segment_bytes = 16 * mib;
    std::chrono::milliseconds timeout = 20s;
    // Of threads only where no rank leaves early: what it showed is gone then, which processes survive.
  };

  explicit shm_crew(int world) : shm_crew(world, options{}) {}
  shm_crew(int world, const options& with) {
    const shm::geometry shape{world, with.segment_bytes};
    const auto file = shm::make_memory_file(shape.bytes());
    const auto one = with.how == views::none ? shm::arena::for_threads(shape) : nullptr;
    for (int rank = 0; rank < world; ++rank) {
      places_.push_back(one ? one : std::make_shared<shm::arena>(file, shape));
      engines_.push_back(std::make_unique<shm::engine>(
          shm::engine::membership{.place = places_.back(),
                                  .rank = rank,
                                  .told = std::make_shared<wall_notices>(notes_, rank, with.timeout),
                                  .pool_bytes = with.pool_bytes,
                                  .worth_sharing = worth_sharing}));
    }
  }

  int world() const { return static_cast<int>(engines_.size()); }
  shm::engine& engine(int rank) { return *engines_[rank]; }
  const shm::arena& place(int rank) { return *places_[rank]; }

  std::vector<std::string> run(const std::function<void(shm::engine&)>& body) {
    return run_threads(world(), [&](int rank) { body(*engines_[rank]); });
  }

 private:
  std::shared_ptr<wall> notes_ = std::make_shared<wall>();
  std::vector<std::shared_ptr<shm::arena>> places_;
  std::vector<std::unique_ptr<shm::engine>> engines_;
};

inline std::vector<std::string> no_errors(int world) { return std::vector<std::string>(world); }

// A call of one rank: begins with this object, and ends with it.
class turn {
 public:
  turn(sheaf::engine& me, operation op, std::optional<std::chrono::milliseconds> timeout = {}) : me_(me) {
    now.head.op = op;
    now.timeout = timeout;
    me_.begin(now);
    now.head.tensors.push_back({.type = dtype::uint8, .ndim = 1, .shape = {4}});
  }
  turn(const turn&) = delete;
  ~turn() { me_.end(now); }

  call now;

 private:
  sheaf::engine& me_;
};

// The own block; empty ones have no memory at all.
inline memory block_memory(const layout& at, int rank, const bytes& whole) {
  return at.block_bytes(rank) == 0 ? memory{} : copy_of(block_of(at, rank, whole));
}

inline void learn(sheaf::engine& me, const call& now) {
  if (const auto error = me.exchange(now, {}).verdict()) throw value_error(*error);
}

// A whole gather, as the ops do it, into memory of the engine's own or into `result`.
inline memory gather(sheaf::engine& me, const layout& at, const bytes& whole, memory result = {},
                     std::optional<std::chrono::milliseconds> timeout = {}) {
  turn mine(me, operation::all_gather, timeout);
  learn(me, mine.now);
  if (!result.data) result = me.take_result(mine.now, at);
  me.all_gather(mine.now, at, block_memory(at, me.rank(), whole), result);
  return result;
}

// One rank holds nearly all; rows are bytes.
inline layout lopsided(int world, int heavy, std::int64_t rows, std::int64_t outer = 1) {
  extents sizes(world, 3);
  sizes[heavy] = rows;
  return make_layout(extents{outer, 1}, 1, sizes, 1);
}

}  // namespace sheaf::test
