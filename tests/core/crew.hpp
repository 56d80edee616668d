// SPDX-License-Identifier: MIT
// Ranks as threads over the point-to-point engine, each with settings of its own, and bytes for them to move.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <random>
#include <sheaf/layout.hpp>
#include <string>
#include <thread>
#include <vector>

#include "p2p/engine.hpp"
#include "threads/channel.hpp"
#include "threads/team.hpp"

namespace sheaf::test {

using namespace std::chrono_literals;
using extents = std::vector<std::int64_t>;
using bytes = std::vector<std::byte>;

// One engine a rank, with settings of its own.
class crew {
 public:
  explicit crew(std::vector<settings> each, std::chrono::milliseconds timeout = 20s)
      : mates_(threads::team::create(static_cast<int>(each.size()), timeout)) {
    const int world = static_cast<int>(each.size());
    for (int rank = 0; rank < world; ++rank) {
      auto link = std::make_shared<threads::channel>(*mates_, rank, world);
      engines_.push_back(std::make_unique<p2p::engine>(std::move(link), each[rank]));
    }
  }
  crew(int world, std::int64_t message_bytes)
      : crew(std::vector<settings>(world, settings{.message_bytes = message_bytes})) {}

  p2p::engine& engine(int rank) { return *engines_[rank]; }
  threads::team& mates() { return *mates_; }

  // Every rank's body at once; the text of what it threw, or "".
  std::vector<std::string> run(const std::function<void(p2p::engine&)>& body) {
    std::vector<std::string> errors(engines_.size());
    std::vector<std::thread> ranks;
    for (auto& one : engines_) {
      ranks.emplace_back([&] {
        try {
          body(*one);
        } catch (const std::exception& error) {
          errors[one->rank()] = error.what();
        }
      });
    }
    for (auto& rank : ranks) rank.join();
    return errors;
  }

 private:
  std::shared_ptr<threads::team> mates_;
  std::vector<std::unique_ptr<p2p::engine>> engines_;
};

// A call of one rank: begins with this object, and ends with it.
struct next_call : call {
  next_call(p2p::engine& rank, operation op, dtype type = dtype::uint8) : me(rank) {
    head.op = op;
    me.begin(*this);
    head.tensors.push_back({.type = type, .ndim = 1, .shape = {4}});
  }
  next_call(const next_call&) = delete;
  ~next_call() { me.end(*this); }

  p2p::engine& me;
};

inline memory copy_of(const bytes& from) {
  auto result = allocate(from.size());
  std::copy(from.begin(), from.end(), result.data);
  return result;
}

inline bytes content(const memory& from) { return {from.data, from.data + from.size}; }

inline bytes random_bytes(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 draw(seed);
  bytes result(count);
  for (auto& one : result) one = static_cast<std::byte>(draw());
  return result;
}

// Block `rank` of the whole, chunk by chunk.
inline bytes block_of(const layout& at, int rank, const bytes& whole) {
  bytes result;
  for (std::int64_t chunk = 0; chunk < at.outer; ++chunk) {
    const auto first = whole.begin() + chunk * at.chunk_bytes() + at.block_offset(rank);
    result.insert(result.end(), first, first + at.block_chunk_bytes(rank));
  }
  return result;
}

inline layout random_layout(std::mt19937_64& draw, int world, std::int64_t itemsize) {
  extents shape(3);
  for (auto& extent : shape) extent = 1 + static_cast<std::int64_t>(draw() % 4);
  extents sizes(world);
  for (auto& size : sizes) size = draw() % 3 == 0 ? 0 : static_cast<std::int64_t>(draw() % 40);
  return make_layout(shape, static_cast<std::int64_t>(draw() % 3), sizes, itemsize);
}

}  // namespace sheaf::test
