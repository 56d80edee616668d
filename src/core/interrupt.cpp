// SPDX-License-Identifier: MIT
#include "core/interrupt.hpp"

#include <atomic>
#include <sheaf/error.hpp>
#include <utility>

namespace {

std::atomic<int (*)()> question{nullptr};
thread_local const std::function<void()>* own_question = nullptr;

}  // namespace

extern "C" void sheaf_on_wait(int (*pending)()) { question.store(pending); }

namespace sheaf {

asked_here::asked_here(std::function<void()> question) : question_(std::move(question)) { own_question = &question_; }

asked_here::~asked_here() { own_question = nullptr; }

void throw_if_interrupted() {
  if (own_question) return (*own_question)();
  const auto pending = question.load();
  if (pending && pending() != 0) throw interrupted("interrupted while waiting for other ranks");
}

}  // namespace sheaf
