// SPDX-License-Identifier: MIT
#include "c10d/channel.hpp"

#include <ATen/ops/from_blob.h>

#include <sheaf/error.hpp>

#include "c10d/transfer.hpp"

namespace sheaf::c10d_engine {
namespace {

// Users' own messages have small tags: Sheaf's have this bit.
constexpr int tag_range = 1 << 30;

at::Tensor as_tensor(const memory& bytes) {
  return at::from_blob(bytes.data, {static_cast<std::int64_t>(bytes.size)}, at::TensorOptions(at::kByte));
}

std::string note_key(int rank) { return "sheaf/note/" + std::to_string(rank); }

}  // namespace

channel::channel(const c10::intrusive_ptr<c10d::ProcessGroup>& group)
    : group_(group),
      backend_(group->getBackend(c10::DeviceType::CPU)),
      rank_(group->getRank()),
      world_(group->getSize()),
      is_gloo_(backend()->getBackendName() == "gloo"),
      timeout_(backend()->getBackendOptions()->timeout) {}

c10::intrusive_ptr<c10d::Backend> channel::backend() const {
  auto alive = backend_.lock();
  if (!alive) throw rank_error("the process group was destroyed");
  return alive;
}

std::unique_ptr<p2p::transfer> channel::send(int peer, std::uint32_t tag, memory bytes) {
  try {
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend()->send(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), backend_, is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

std::unique_ptr<p2p::transfer> channel::receive(int peer, std::uint32_t tag, memory bytes) {
  try {
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend()->recv(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), backend_, is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

void channel::keep(std::unique_ptr<p2p::transfer> abandoned) {
  adopt(std::unique_ptr<transfer>(static_cast<transfer*>(abandoned.release())));
}

void channel::publish(const std::string& note) noexcept {
  try {
    const auto group = group_.lock();
    if (group && group->getStore()) group->getStore()->set(note_key(rank_), note);
  } catch (const std::exception&) {
    // The store may be gone with its host: the error this note is for says so.
  }
}

std::optional<std::string> channel::published(int rank) noexcept {
  try {
    const auto group = group_.lock();
    if (!group || !group->getStore() || !group->getStore()->check({note_key(rank)})) return std::nullopt;
    return group->getStore()->get_to_str(note_key(rank));
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace sheaf::c10d_engine
