// SPDX-License-Identifier: MIT
#include "c10d/collectives.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <sheaf/error.hpp>

#include "c10d/transfer.hpp"
#include "core/work.hpp"

namespace sheaf::c10d_engine {
namespace {

using splits = std::vector<std::int64_t>;

// Ragged blocks of less than this, padded, go by one even collective: each message of a grouped one costs more.
constexpr std::int64_t padded_bytes = std::int64_t{1} << 20;
// From here on an owner of much more than the others has its sums shared out.
constexpr std::int64_t large_block = std::int64_t{1} << 20;
constexpr std::int64_t grain = 16;  // of vectors, and a multiple of every element's size

std::int64_t rounded(std::int64_t bytes) { return (bytes + grain - 1) / grain * grain; }

c10::Device device_of(const memory& bytes) {
  if (bytes.device != device_type::cuda) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(bytes.device_index));
}

at::Tensor as_tensor(const memory& bytes) {
  const auto device = device_of(bytes);
  return at::for_blob(bytes.data, {static_cast<std::int64_t>(bytes.size)})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

std::byte* bytes_of(const at::Tensor& x) { return static_cast<std::byte*>(x.mutable_data_ptr()); }

splits block_bytes(const layout& at) {
  splits bytes;
  for (int rank = 0; rank < static_cast<int>(at.sizes.size()); ++rank) bytes.push_back(at.block_bytes(rank));
  return bytes;
}

std::int64_t largest_block(const layout& at) { return std::ranges::max(block_bytes(at)); }

bool is_even(const layout& at) {
  return std::ranges::all_of(at.sizes, [&](std::int64_t rows) { return rows == at.sizes[0]; });
}

// What the busiest rank receives if every owner sums its own rows, against even shares that are then handed on. The
// second round must be worth it.
bool is_shared_out(const layout& at) {
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  const auto largest = largest_block(at);
  const auto by_owners = (world - 1) * largest;
  const auto by_shares = at.bytes() / world * (world - 2) + largest;
  return largest >= large_block && by_owners / 3 * 2 > by_shares;
}

// How many bytes of the blocks, one after another, each rank sums: even shares of whole vectors.
splits even_shares(std::int64_t bytes, std::int64_t world) {
  const auto vectors = rounded(bytes) / grain;
  splits shares;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const auto first = vectors * rank / world * grain;
    shares.push_back(std::min(vectors * (rank + 1) / world * grain, bytes) - first);
  }
  return shares;
}

// Of the run of bytes that is parts[which]: how much of it lies in each of `others`, both being cuts of the same bytes.
splits overlaps(const splits& parts, std::size_t which, const splits& others) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < which; ++i) first += parts[i];
  const auto end = first + parts[which];
  splits common;
  std::int64_t begin = 0;
  for (const auto bytes : others) {
    common.push_back(std::max<std::int64_t>(0, std::min(end, begin + bytes) - std::max(first, begin)));
    begin += bytes;
  }
  return common;
}

// The collectives of one call.
class steps {
 public:
  steps(const group_ref& group, const call& now, const memory& on)
      : now_(now), device_(device_of(on)), guard_(device_), work_(*find_work(on.device)) {
    const auto alive = group.lock();
    if (!alive) throw rank_error("the process group was destroyed");
    backend_ = alive->getBackend(device_.type());
  }

  const local_work& local() const { return work_; }
  at::Tensor scratch(std::int64_t bytes) const {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
  }

  void gather_even(at::Tensor block, at::Tensor whole) {
    finish([&] { return backend_->_allgather_base(whole, block, with<c10d::AllgatherOptions>()); });
  }

  // Each rank's block into its part of `whole`, one after another.
  void gather_uneven(at::Tensor block, const at::Tensor& whole, const splits& bytes) {
    std::vector<at::Tensor> parts = whole.split_with_sizes(bytes);
    if (backend_->getBackendName() == "nccl") {
      // One grouped operation, straight into place.
      std::vector<std::vector<at::Tensor>> outputs{parts};
      std::vector<at::Tensor> inputs{block};
      return finish([&] { return backend_->allgather(outputs, inputs, with<c10d::AllgatherOptions>()); });
    }
    parts[backend_->getRank()].copy_(block);
    for (std::size_t root = 0; root < parts.size(); ++root) {
      if (bytes[root] == 0) continue;
      std::vector<at::Tensor> part{parts[root]};
      auto options = with<c10d::BroadcastOptions>();
      options.rootRank = static_cast<std::int64_t>(root);
      finish([&] { return backend_->broadcast(part, options); });
    }
  }

  void all_to_all(at::Tensor from, splits sent, at::Tensor to, splits received) {
    finish([&] { return backend_->alltoall_base(to, from, received, sent, with<c10d::AllToAllOptions>()); });
  }

 private:
  template <class Options>
  Options with() const {
    Options options;
    options.asyncOp = false;  // NCCL: on the current stream, so that nothing need be recorded on another
    if (now_.timeout) options.timeout = *now_.timeout;
    return options;
  }

  template <class Start>
  void finish(Start&& start) {
    try {
      if (const c10::intrusive_ptr<c10d::Work> started = start()) started->wait();
    } catch (const std::exception& error) {
      throw rank_error(title(now_.head) + ": " + first_line(error));
    }
  }

  const call& now_;
  const c10::Device device_;
  const c10::DeviceGuard guard_;
  const local_work& work_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

std::vector<const std::byte*> one_after_another(const std::byte* first, const splits& bytes) {
  std::vector<const std::byte*> blocks;
  for (const auto count : bytes) {
    blocks.push_back(first);
    first += count;
  }
  return blocks;
}

void gather_padded(steps& run, const layout& at, int rank, const at::Tensor& block, std::byte* whole) {
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  const auto slot = rounded(largest_block(at));
  const auto staging = run.scratch(world * slot);
  const auto mine = staging.narrow(0, rank * slot, slot);
  mine.narrow(0, 0, block.numel()).copy_(block);
  run.gather_even(mine, staging);
  run.local().place(at, one_after_another(bytes_of(staging), splits(world, slot)), whole);
}

}  // namespace

void collectives::all_gather(const call& now, const layout& at, const memory& own, const memory& result) const {
  if (at.bytes() == 0) return;
  steps run(group_, now, result);
  const auto block = as_tensor(own);
  const bool even = is_even(at);
  const auto padded = static_cast<std::int64_t>(at.sizes.size()) * rounded(largest_block(at));
  if (!even && padded <= padded_bytes) return gather_padded(run, at, rank_, block, result.data);

  // Along dim 0 the blocks, one after another, are the result; along others they are placed from there.
  const auto blocks = at.outer == 1 ? as_tensor(result) : run.scratch(at.bytes());
  const auto bytes = block_bytes(at);
  if (even) {
    run.gather_even(block, blocks);
  } else {
    run.gather_uneven(block, blocks, bytes);
  }
  if (at.outer > 1) run.local().place(at, one_after_another(bytes_of(blocks), bytes), result.data);
}

void collectives::reduce_scatter(const call& now, const part& of) const {
  const auto& [at, type, op, whole, own] = of;
  if (at.bytes() == 0) return;
  steps run(group_, now, whole);
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  auto blocks = at.outer == 1 ? as_tensor(whole) : run.scratch(at.bytes());
  if (at.outer > 1) run.local().pack(at, whole.data, bytes_of(blocks));

  const auto owners = block_bytes(at);
  const bool shared_out = is_shared_out(at);
  const auto parts = shared_out ? even_shares(at.bytes(), world) : owners;
  const auto mine = parts[rank_];
  const auto heard = run.scratch(world * mine);
  run.all_to_all(blocks, parts, heard, splits(world, mine));
  blocks.reset();
  const auto sum = shared_out ? run.scratch(mine) : as_tensor(own);
  run.local().sum(type, op, static_cast<int>(world), bytes_of(heard), bytes_of(sum), static_cast<std::size_t>(mine));
  if (!shared_out) return;
  run.all_to_all(sum, overlaps(parts, rank_, owners), as_tensor(own), overlaps(owners, rank_, parts));
}

}  // namespace sheaf::c10d_engine
