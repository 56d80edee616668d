// SPDX-License-Identifier: MIT
// Sheaf's reduce_scatter, which returns its result, beside MPI_Reduce_scatter into the caller's buffer: sums of
// float32.
#include <mpi.h>

#include "call.hpp"
#include "collectives.hpp"
#include "core/copy.hpp"
#include "core/sum.hpp"
#include "pattern.hpp"

namespace bench {
namespace {

struct buffers {
  setting with;
  sheaf::memory terms;  // the whole tensors that this rank brings, one per call
  sheaf::memory own;    // the caller's, for the own rows of the sum, one per call

  std::int64_t own_bytes() const { return with.at.block_bytes(with.engine.rank()); }
  sheaf::memory whole(int number) const { return nth(terms, number, with.at.bytes()); }
  sheaf::memory block(int number) const { return nth(own, number, own_bytes()); }
};

// As src/torch/reduce_scatter.cpp does it for tensors that rode along.
sheaf::memory sum_inlined(const setting& with, call& run, const sheaf::heard& said, const sheaf::memory& whole) {
  const auto& at = with.at;
  const int rank = with.engine.rank();
  const auto own = at.block_bytes(rank);
  std::vector<const std::byte*> sources(with.engine.world());
  for (int peer = 0; peer < with.engine.world(); ++peer) {
    const auto* from = peer == rank ? whole.data : inlined(said, peer, at.bytes()).data();
    sources[peer] = from + at.block_offset(rank);
  }
  auto result = run.take_private(static_cast<std::size_t>(own));
  sheaf::sum_ranks(sheaf::dtype::float32, sheaf::reduction::sum, sources, result.data, result.size);
  return result;
}

sheaf::memory scatter(const buffers& on, int number) {
  const auto& given = on.with.at;
  const auto whole = on.whole(number);
  call run(on.with.engine, sheaf::operation::reduce_scatter, given.rows, given.row_bytes / 4, given.sizes);
  const auto at = run.place(given.sizes);
  if (run.is_inlined(at.bytes())) {
    const auto first = static_cast<std::size_t>(at.block_offset(on.with.engine.rank()));
    const auto own = static_cast<std::size_t>(on.own_bytes());
    const auto& said = run.learn({std::span<const std::byte>(whole.data, whole.size), {first, own}});
    return sum_inlined(on.with, run, said, whole);
  }
  run.learn({});
  auto result = run.take_result(at, static_cast<std::size_t>(on.own_bytes()));
  run.reduce_scatter(at, whole, result);
  return result;
}

class by_sheaf final : public with_results {
 public:
  explicit by_sheaf(const buffers& on) : with_results("sheaf", on.with.calls), on_(on) {}

 private:
  sheaf::memory make(int number) override { return scatter(on_, number); }

  const buffers& on_;
};

class by_mpi final : public candidate {
 public:
  explicit by_mpi(const buffers& on) : candidate("mpi"), on_(on) {
    for (int rank = 0; rank < on.with.engine.world(); ++rank) {
      counts_.push_back(static_cast<int>(on.with.at.block_bytes(rank) / 4));
    }
  }
  void call(int number) override {
    MPI_Reduce_scatter(on_.whole(number).data, on_.block(number).data, counts_.data(), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
  }
  std::span<const std::byte> result(int number) const override {
    const auto block = on_.block(number);
    return {block.data, block.size};
  }

 private:
  const buffers& on_;
  std::vector<int> counts_;
};

class scatters final : public collective {
 public:
  explicit scatters(const setting& of)
      : on_{of, allocate_warm(of.calls * of.at.bytes()),
            allocate_warm(of.calls * of.at.block_bytes(of.engine.rank()))} {
    candidates.push_back(std::make_unique<by_sheaf>(on_));
    candidates.push_back(std::make_unique<by_mpi>(on_));
    candidates.push_back(std::make_unique<plain_copy>(on_.whole(0), allocate_warm(of.at.bytes())));
  }

  void prepare(int number, std::uint64_t salt) override {
    const auto whole = on_.whole(number);
    fill_terms({reinterpret_cast<float*>(whole.data), whole.size / 4}, on_.with.engine.rank(), salt);
  }
  std::int64_t count_wrong(std::span<const std::byte> result, std::uint64_t salt) const override {
    const std::span part(reinterpret_cast<const float*>(result.data()), result.size() / 4);
    const auto first = on_.with.at.block_offset(on_.with.engine.rank()) / 4;
    const auto missing = on_.own_bytes() / 4 - std::ssize(part);
    return missing + wrong_sums(part, first, on_.with.engine.world(), salt);
  }

 private:
  const buffers on_;
};

}  // namespace

std::unique_ptr<collective> make_reduce_scatter(const setting& of) { return std::make_unique<scatters>(of); }

}  // namespace bench
