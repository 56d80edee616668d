// SPDX-License-Identifier: MIT
#include "c10d/channel.hpp"

#include <ATen/ops/from_blob.h>

#include <sheaf/error.hpp>

#include "c10d/store_bulletin.hpp"
#include "c10d/transfer.hpp"

namespace sheaf::c10d_engine {
namespace {

// Users' own messages have small tags: Sheaf's have this bit.
constexpr int tag_range = 1 << 30;

at::Tensor as_tensor(const memory& bytes) {
  return at::from_blob(bytes.data, {static_cast<std::int64_t>(bytes.size)}, at::TensorOptions(at::kByte));
}

}  // namespace

channel::channel(const group_pointer& group)
    : group_(group),
      rank_(group->getRank()),
      world_(group->getSize()),
      backend_name_(backend()->getBackendName()),
      is_gloo_(backend_name_ == "gloo"),
      timeout_(options_of(*group) ? options_of(*group)->timeout : kBackendDefaultTimeout),
      global_ranks_(options_of(*group) ? options_of(*group)->global_ranks_in_group : std::vector<std::uint64_t>()) {}

c10::intrusive_ptr<c10d::Backend> channel::backend() const {
  const auto alive = group_.lock();
  if (!alive) throw rank_error("the process group was destroyed");
  return alive->getBackend(c10::DeviceType::CPU);
}

std::unique_ptr<p2p::transfer> channel::send(int peer, std::uint32_t tag, memory bytes) {
  try {
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend()->send(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), group_, is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

std::unique_ptr<p2p::transfer> channel::receive(int peer, std::uint32_t tag, memory bytes) {
  try {
    std::vector<at::Tensor> tensors{as_tensor(bytes)};
    auto work = backend()->recv(tensors, peer, tag_range | static_cast<int>(tag));
    return std::make_unique<transfer>(std::move(work), std::move(bytes), group_, is_gloo_);
  } catch (const std::exception& error) {
    throw rank_error(first_line(error));
  }
}

void channel::keep(std::unique_ptr<p2p::transfer> abandoned) {
  adopt(std::unique_ptr<transfer>(static_cast<transfer*>(abandoned.release())));
}

c10::intrusive_ptr<c10d::Store> channel::group_store() const {
  const auto group = group_.lock();
  return group ? group->getStore() : c10::intrusive_ptr<c10d::Store>();
}

c10::intrusive_ptr<c10d::Store> channel::store() const {
  if (const auto shared = find_group("0")) return shared->getStore();
  return group_store();  // made without a default group
}

std::string channel::text_key(int rank) const {
  return "sheaf/note/" + std::to_string(global_ranks_.empty() ? rank : global_ranks_[rank]);
}

void channel::publish(const std::string& text) noexcept {
  try {
    if (const auto shared = store()) shared->set(text_key(rank_), text);
  } catch (const std::exception&) {
    // The store may be gone with its host: the error this text is for says so.
  }
}

std::optional<std::string> channel::published(int rank) noexcept {
  try {
    const auto shared = store();
    return shared ? store_bulletin(shared).get(text_key(rank)) : std::nullopt;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace sheaf::c10d_engine
