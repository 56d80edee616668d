// SPDX-License-Identifier: MIT
#include "c10d/channel.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <sheaf/error.hpp>

#include "c10d/transfer.hpp"
#include "core/text.hpp"

namespace sheaf::c10d_engine {
namespace {

// Users' own messages have small tags: Sheaf's have this bit.
constexpr int tag_range = 1 << 30;

// To be held where messages are posted: a profiler's session may be over before one comes, and torch would still write
// its end there.
struct unprofiled : at::RecordFunctionGuard {
  unprofiled() : RecordFunctionGuard(false) {}
};

at::Tensor as_tensor(const memory& bytes) {
  return at::from_blob(bytes.data, {static_cast<std::int64_t>(bytes.size)}, at::TensorOptions(at::kByte));
}

}  // namespace

channel::channel(const group_pointer& group) : link(group), is_gloo_(backend_name(c10::DeviceType::CPU) == "gloo") {}

std::string channel::describe() const {
  return "c10d over " + backend_name(c10::DeviceType::CPU) + " (point-to-point messages of the group's backend";
}

std::unique_ptr<p2p::transfer> channel::send(int peer, std::uint32_t tag, memory bytes) {
  try {
    const unprofiled here;
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend(c10::DeviceType::CPU)->send(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), group(), is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

std::unique_ptr<p2p::transfer> channel::receive(int peer, std::uint32_t tag, memory bytes) {
  try {
    const unprofiled here;
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend(c10::DeviceType::CPU)->recv(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), group(), is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

void channel::keep(std::unique_ptr<p2p::transfer> abandoned) {
  adopt(std::unique_ptr<transfer>(static_cast<transfer*>(abandoned.release())));
}

}  // namespace sheaf::c10d_engine
