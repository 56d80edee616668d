// SPDX-License-Identifier: MIT
#include "c10d/chosen.hpp"

#include <c10/util/Exception.h>

#include <sheaf/error.hpp>
#include <utility>

#include "c10d/store_bulletin.hpp"
#include "core/work.hpp"
#include "p2p/engine.hpp"

namespace sheaf::c10d_engine {
namespace {

c10::DeviceType torch_device(device_type device) {
  return device == device_type::cuda ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
}

}  // namespace

void chosen::number(call& now) {
  {
    const std::lock_guard lock(mutex_);
    if (!inner_) {
      now.head.sequence = missed_ + 1;
      try {
        settle(now);
      } catch (...) {
        missed_ += 1u + now.head.follows;
        throw;
      }
      inner_->skip(std::exchange(missed_, 0));
    }
  }
  inner_->number(now);
}

// A try that ends at its deadline leaves the meeting as it is: the next call goes on with it.
void chosen::settle(const call& now) {
  throw_if_impossible();
  try {
    const auto store = link_->group_store();
    if (!meeting_ && store) {
      meeting_ = std::make_unique<shm::meeting>(std::make_shared<store_bulletin>(store), rank(), world(), settings_);
    }
  } catch (const std::exception& error) {
    throw rank_error("the group's store does not answer: " + std::string(error.what()));
  }
  auto met = meeting_ ? meeting_->join(*link_, now) : shm::meeting::outcome{.why_not = "the group has no store"};
  meeting_.reset();
  if (met.place) {
    shared_ = std::make_shared<shm::engine>(shm::engine::membership{met.place, rank(), link_, std::move(met.lives),
                                                                    static_cast<std::size_t>(settings_.pool_bytes)});
    inner_ = shared_;
    return;
  }
  why_not_ = met.why_not;
  throw_if_impossible();
  if (settings_.engine == "auto" && link_->carries_data() && rank() == 0) {
    TORCH_WARN_ONCE("Sheaf carries group \"", link_->name(),
                    "\" through its own backend, not through shared memory: ", why_not_);
  }
  inner_ = std::make_shared<p2p::engine>(link_, settings_);
}

void chosen::throw_if_impossible() const {
  if (settings_.engine != "shm" || why_not_.empty()) return;
  throw value_error("SHEAF_ENGINE=shm, but shared memory cannot be used: " + why_not_);
}

carriage chosen::carries(device_type device) const {
  if (device == device_type::cuda) {
    const bool can = find_work(device) && !link_->backend_name(c10::DeviceType::CUDA).empty();
    return can ? carriage::device : carriage::none;
  }
  if (device != device_type::cpu || !link_->carries_data()) return carriage::none;
  return settings_.engine == "collectives" ? carriage::device : carriage::host;
}

bool chosen::carries_apart(device_type device) const {
  return carries(device) != carriage::device || collectives_.why_not_apart(torch_device(device)).empty();
}

void chosen::all_gather(const call& now, const layout& at, memory own, memory result) {
  if (!is_device(own)) return inner_->all_gather(now, at, std::move(own), std::move(result));
  collectives_.all_gather(now, {rank(), {{.at = at, .whole = std::move(result), .own = std::move(own)}}});
}

void chosen::reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) {
  if (!is_device(whole)) return inner_->reduce_scatter(now, at, op, std::move(whole), std::move(own));
  const auto type = now.head.tensors[0].type;
  collectives_.reduce_scatter(now, {rank(), {{at, type, op, std::move(whole), std::move(own)}}});
}

void chosen::all_gather_coalesced(const call& now, const bundle& all) {
  if (!is_device(all.parts()[0].whole)) return inner_->all_gather_coalesced(now, all);
  collectives_.all_gather(now, all);
}

void chosen::reduce_scatter_coalesced(const call& now, const bundle& all, memory own) {
  if (!is_device(all.parts()[0].whole)) return inner_->reduce_scatter_coalesced(now, all, std::move(own));
  collectives_.reduce_scatter(now, all);
}

void chosen::lose_step(const call& now) noexcept {
  const std::lock_guard lock(step_mutex_);
  if (!out_of_step_since_.empty()) return;
  try {
    out_of_step_since_ = title(now.head);
  } catch (const std::bad_alloc&) {
    out_of_step_since_ = "a call";  // short enough to need no memory
  }
}

std::string chosen::out_of_step_since() const {
  const std::lock_guard lock(step_mutex_);
  return out_of_step_since_;
}

std::string chosen::describe_headers() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || !inner_) {
    if (settings_.engine == "c10d") return link_->describe() + ": SHEAF_ENGINE=c10d)";
    return "shm, or " + link_->describe().substr(0, link_->describe().find(" (")) +
           " (settled in the group's first call)";
  }
  if (!shared_) return link_->describe() + ": " + why_not_ + ")";
  return shared_->describe();
}

std::string chosen::describe_cpu() {
  switch (carries(device_type::cpu)) {
    case carriage::none:
      return "";
    case carriage::device:
      return describe_collectives(c10::DeviceType::CPU, "SHEAF_ENGINE=collectives");
    case carriage::host:
      break;
  }
  return describe_headers();
}

std::string chosen::describe_cuda() const {
  if (carries(device_type::cuda) == carriage::none) return "";
  return describe_collectives(c10::DeviceType::CUDA, "the group's backend for CUDA tensors");
}

std::string chosen::describe_collectives(c10::DeviceType device, const std::string& why) const {
  const auto not_apart = collectives_.why_not_apart(device);
  return "collectives of " + link_->backend_name(device) + " (" + why +
         (not_apart.empty() ? ")" : "; started calls wait for other ranks where they are started: " + not_apart + ")");
}

}  // namespace sheaf::c10d_engine
