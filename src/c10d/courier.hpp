// SPDX-License-Identifier: MIT
// Asks a store for a call's notes. A store answers one thread at a time, and whoever waits in it for another rank keeps
// all others out; one whose host is gone may never answer. So a thread of their own asks, and no wait depends on it.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/progress.hpp"

namespace sheaf::c10d_engine {

class courier {
 public:
  using text = std::optional<std::string>;

  static courier& of_this_process();

  // What ask() says; nothing where it throws, or has not said so in a moment. It goes on then, and until it is done
  // those after it are not waited for.
  text send(const std::function<text()>& ask);

 private:
  static text said_by(const std::function<text()>& ask) noexcept;

  const std::shared_ptr<progress> thread_ = std::make_shared<progress>();
  std::mutex mutex_;
  std::shared_future<text> late_;  // what nobody waited for any longer
};

}  // namespace sheaf::c10d_engine
