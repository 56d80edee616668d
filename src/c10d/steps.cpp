// SPDX-License-Identifier: MIT
#include "c10d/steps.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <sheaf/error.hpp>

#include "core/chore.hpp"
#include "core/text.hpp"

namespace sheaf::c10d_engine {
namespace {

c10::Device device_of(const memory& bytes) {
  if (bytes.device != device_type::cuda) return c10::Device(c10::kCPU);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(bytes.device_index));
}

}  // namespace

at::Tensor as_tensor(const memory& bytes) {
  const auto device = device_of(bytes);
  return at::for_blob(bytes.data, {static_cast<std::int64_t>(bytes.size)})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

std::byte* bytes_of(const at::Tensor& x) { return static_cast<std::byte*>(x.mutable_data_ptr()); }

steps::steps(backends& of, const call& now, const memory& on)
    : of_(of),
      now_(now),
      device_(device_of(on)),
      guard_(device_),
      work_(*find_work(on.device)),
      backend_(now.head.apart ? of.second(device_.type()) : of.own(device_.type())) {}

steps::~steps() {
  if (!now_.head.apart) return;
  try {
    of_.asked(device_);
  } catch (const std::exception&) {
    // A device that does not take that has said so before.
  }
}

at::Tensor steps::scratch(std::int64_t bytes) const {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device_));
}

template <class Options>
Options steps::with() const {
  Options options;
  options.asyncOp = false;  // NCCL: on the current stream, so that nothing need be recorded on another
  if (now_.timeout) options.timeout = *now_.timeout;
  return options;
}

template <class Start>
void steps::finish(Start&& start) {
  const blind_wait now;
  try {
    if (const c10::intrusive_ptr<c10d::Work> started = start()) started->wait();
  } catch (const std::exception& error) {
    throw rank_error(title(now_.head) + ": " + first_line(error));
  }
}

void steps::gather_even(at::Tensor block, at::Tensor whole) {
  finish([&] { return backend_->_allgather_base(whole, block, with<::c10d::AllgatherOptions>()); });
}

void steps::broadcast_each(const std::vector<at::Tensor>& parts) {
  for (std::size_t root = 0; root < parts.size(); ++root) {
    if (parts[root].numel() == 0) continue;
    std::vector<at::Tensor> part{parts[root]};
    auto options = with<::c10d::BroadcastOptions>();
    options.rootRank = static_cast<std::int64_t>(root);
    finish([&] { return backend_->broadcast(part, options); });
  }
}

void steps::gather_directly(const at::Tensor& block, std::vector<at::Tensor> parts) {
  // A backend that makes one operation of several (NCCL) sends lists of tensors as well; Gloo does neither.
  if (!backend_->supportsCoalescing()) return gather_grouped(block, std::move(parts));
  std::vector<at::Tensor> blocks(parts.size(), block);
  const auto own = static_cast<std::size_t>(backend_->getRank());
  blocks[own] = parts[own] = block.narrow(0, 0, 0);
  finish([&] { return backend_->alltoall(parts, blocks, with<::c10d::AllToAllOptions>()); });
}

void steps::gather_grouped(at::Tensor block, std::vector<at::Tensor> parts) {
  parts[backend_->getRank()] = std::move(block);
  if (!backend_->supportsCoalescing()) return broadcast_each(parts);
  backend_->startCoalescing();
  try {
    broadcast_each(parts);
  } catch (...) {
    try {
      backend_->endCoalescing();
    } catch (const std::exception&) {
      // The first error says what is wrong.
    }
    throw;
  }
  finish([&] { return backend_->endCoalescing(); });
}

void steps::all_to_all(at::Tensor from, splits sent, at::Tensor to, splits received) {
  finish([&] { return backend_->alltoall_base(to, from, received, sent, with<::c10d::AllToAllOptions>()); });
}

}  // namespace sheaf::c10d_engine
