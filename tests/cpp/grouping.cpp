// SPDX-License-Identifier: MIT
// A backend for CPU tensors that, as NCCL does, makes one operation of several and sends lists of tensors: Gloo does
// the work. It remembers what it was asked for. Nothing makes a second one of it.
#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <sheaf/export.hpp>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

namespace {

using namespace c10d;
using backend = c10::intrusive_ptr<Backend>;
using tensors = std::vector<at::Tensor>;
using under_way = c10::intrusive_ptr<Work>;

// What this process's groupings were asked for, since somebody looked.
std::mutex guards_asked;
std::vector<std::string> asked;

void note(const std::string& what) {
  const std::lock_guard lock(guards_asked);
  asked.push_back(what);
}

class grouping final : public Backend {
 public:
  explicit grouping(backend by) : Backend(by->getRank(), by->getSize()), by_(std::move(by)) {}

  const std::string getBackendName() const override { return "grouping"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return by_->getBackendOptions(); }
  bool supportsCoalescing() const override { return true; }

  void startCoalescing() override {
    TORCH_CHECK(!is_open_, "a group within a group");
    is_open_ = true;
  }

  under_way endCoalescing() override {
    TORCH_CHECK(std::exchange(is_open_, false), "no group was begun");
    note("group of " + std::to_string(grouped_.size()));
    for (const auto& start : std::exchange(grouped_, {})) start()->wait();
    return {};
  }

  under_way broadcast(tensors& of, const BroadcastOptions& with) override {
    if (!is_open_) return by_->broadcast(of, with);
    grouped_.emplace_back([this, of, with]() mutable { return by_->broadcast(of, with); });
    return {};
  }

  under_way _allgather_base(at::Tensor& whole, at::Tensor& own, const AllgatherOptions& with) override {
    note("all_gather");
    return by_->_allgather_base(whole, own, with);
  }

  under_way alltoall(tensors& received, tensors& sent, const AllToAllOptions&) override {
    note("lists");
    std::vector<under_way> all;
    for (int peer = 0; peer < getSize(); ++peer) {
      TORCH_CHECK(peer != getRank() || (sent[peer].numel() == 0 && received[peer].numel() == 0), "to itself");
      tensors from{received[peer]}, to{sent[peer]};
      if (from[0].numel() > 0) all.push_back(by_->recv(from, peer, tag));
      if (to[0].numel() > 0) all.push_back(by_->send(to, peer, tag));
    }
    for (const auto& one : all) one->wait();
    return {};
  }

  under_way alltoall_base(at::Tensor& to, at::Tensor& from, std::vector<int64_t>& received, std::vector<int64_t>& sent,
                          const AllToAllOptions& with) override {
    note("all_to_all");
    return by_->alltoall_base(to, from, received, sent, with);
  }

  // The program's own.
  under_way barrier(const BarrierOptions& with) override { return by_->barrier(with); }
  under_way allreduce(tensors& of, const AllreduceOptions& with) override { return by_->allreduce(of, with); }
  under_way allgather(std::vector<tensors>& to, tensors& from, const AllgatherOptions& with) override {
    return by_->allgather(to, from, with);
  }
  under_way send(tensors& of, int to, int its_tag) override { return by_->send(of, to, its_tag); }
  under_way recv(tensors& of, int from, int its_tag) override { return by_->recv(of, from, its_tag); }
  void abort() override { by_->abort(); }
  void shutdown() override { by_->shutdown(); }

 private:
  static constexpr int tag = 77;
  const backend by_;
  bool is_open_ = false;
  std::vector<std::function<under_way()>> grouped_;
};

}  // namespace

// From now on this group's CPU tensors go by a grouping over what carried them.
extern "C" SHEAF_API void sheaf_group_operations(const char* name) {
  const auto group = resolve_process_group(name);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::CUSTOM,
                    c10::make_intrusive<grouping>(group->getBackend(c10::DeviceType::CPU)));
}

// What groupings were asked for since the last call, a line each.
extern "C" SHEAF_API void sheaf_asked_of_groupings(char* text, std::size_t room) {
  const std::lock_guard lock(guards_asked);
  std::string said;
  for (const auto& what : std::exchange(asked, {})) said += what + "\n";
  const auto length = std::min(said.size(), room - 1);
  std::memcpy(text, said.data(), length);
  text[length] = '\0';
}
