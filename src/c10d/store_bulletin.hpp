// SPDX-License-Identifier: MIT
// A c10d store as the place where ranks leave texts for each other.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shm/meeting.hpp"

namespace sheaf::c10d_engine {

class store_bulletin final : public shm::bulletin {
 public:
  explicit store_bulletin(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& name, const std::string& text) override { store_->set(name, text); }
  std::optional<std::string> get(const std::string& name) override {
    if (!store_->check({name})) return std::nullopt;
    return store_->get_to_str(name);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace sheaf::c10d_engine
