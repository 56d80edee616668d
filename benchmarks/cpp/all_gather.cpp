// SPDX-License-Identifier: MIT
// Sheaf's all_gather with sizes learned, into the caller's buffer and as a returned result, beside MPI_Allgatherv,
// which is given the sizes and the caller's buffer.
#include <mpi.h>

#include "call.hpp"
#include "collectives.hpp"
#include "core/copy.hpp"
#include "pattern.hpp"
#include "shared_copy.hpp"

namespace bench {
namespace {

struct buffers {
  setting with;
  sheaf::memory own;     // the blocks of this rank, one per call
  sheaf::memory result;  // the caller's, one per call

  std::int64_t own_bytes() const { return with.at.block_bytes(with.engine.rank()); }
  sheaf::memory block(int number) const { return nth(own, number, own_bytes()); }
  sheaf::memory whole(int number) const { return nth(result, number, with.at.bytes()); }
};

// As src/torch/all_gather.cpp does it. `given` without data: Sheaf makes the result.
sheaf::memory gather(const buffers& on, int number, sheaf::memory given) {
  const auto own = on.block(number);
  auto& engine = on.with.engine;
  call run(engine, sheaf::operation::all_gather, on.with.at.sizes[engine.rank()], on.with.at.row_bytes / 4);
  const bool rides = run.is_inlined(on.own_bytes());
  const auto& said = run.learn(rides ? std::span<const std::byte>(own.data, own.size) : std::span<const std::byte>());
  const auto at = run.place(said.rows_of());
  bool small = true;
  for (int rank = 0; rank < engine.world(); ++rank) small &= run.is_inlined(at.block_bytes(rank));
  if (!small) {
    auto result = given.data ? std::move(given) : run.take_result(at, static_cast<std::size_t>(at.bytes()));
    run.all_gather(at, own, result);
    return result;
  }
  auto result = given.data ? std::move(given) : run.take_private(static_cast<std::size_t>(at.bytes()));
  for (int rank = 0; rank < engine.world(); ++rank) {
    const auto* block = rank == engine.rank() ? own.data : inlined(said, rank, at.block_bytes(rank)).data();
    sheaf::place(at, rank, block, result.data);
  }
  return result;
}

class into_buffer final : public candidate {
 public:
  explicit into_buffer(const buffers& on) : candidate("sheaf, into buffer"), on_(on) {}
  void call(int number) override { gather(on_, number, on_.whole(number)); }
  std::span<const std::byte> result(int number) const override {
    const auto whole = on_.whole(number);
    return {whole.data, whole.size};
  }

 private:
  const buffers& on_;
};

class returned final : public with_results {
 public:
  explicit returned(const buffers& on) : with_results("sheaf, returned", on.with.calls), on_(on) {}

 private:
  sheaf::memory make(int number) override { return gather(on_, number, {}); }

  const buffers& on_;
};

class by_mpi final : public candidate {
 public:
  explicit by_mpi(const buffers& on) : candidate("mpi"), on_(on) {
    for (int rank = 0; rank < on.with.engine.world(); ++rank) {
      counts_.push_back(static_cast<int>(on.with.at.block_bytes(rank) / 4));
      offsets_.push_back(static_cast<int>(on.with.at.block_offset(rank) / 4));
    }
  }
  void call(int number) override {
    MPI_Allgatherv(on_.block(number).data, counts_[on_.with.engine.rank()], MPI_FLOAT, on_.whole(number).data,
                   counts_.data(), offsets_.data(), MPI_FLOAT, MPI_COMM_WORLD);
  }
  std::span<const std::byte> result(int number) const override {
    const auto whole = on_.whole(number);
    return {whole.data, whole.size};
  }

 private:
  const buffers& on_;
  std::vector<int> counts_, offsets_;
};

class gathers final : public collective {
 public:
  explicit gathers(const setting& of)
      : on_{of, allocate_warm(of.calls * of.at.block_bytes(of.engine.rank())),
            allocate_warm(of.calls * of.at.bytes())} {
    candidates.push_back(std::make_unique<into_buffer>(on_));
    candidates.push_back(std::make_unique<returned>(on_));
    candidates.push_back(std::make_unique<by_mpi>(on_));
    candidates.push_back(std::make_unique<plain_copy>(allocate_warm(of.at.bytes()), on_.whole(0)));
    if (of.calls == 1) candidates.push_back(std::make_unique<shared_copy>(of, on_.block(0)));
  }

  void prepare(int number, std::uint64_t salt) override {
    const auto block = on_.block(number);
    fill_block({block.data, block.size}, on_.with.engine.rank(), salt);
  }
  std::int64_t count_wrong(std::span<const std::byte> result, std::uint64_t salt) const override {
    const auto& at = on_.with.at;
    std::int64_t wrong = 0;
    for (int rank = 0; rank < on_.with.engine.world(); ++rank) {
      wrong += wrong_words(result.subspan(at.block_offset(rank), at.block_bytes(rank)), rank, salt);
    }
    return wrong;
  }

 private:
  const buffers on_;
};

}  // namespace

std::unique_ptr<collective> make_all_gather(const setting& of) { return std::make_unique<gathers>(of); }

}  // namespace bench
