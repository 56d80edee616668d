// SPDX-License-Identifier: MIT
#include "torch/result.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>

namespace sheaf {
namespace {

// Lazy clones of a tensor are possible only where a storage's context is its data, so owners are found by address.
class owners {
 public:
  void add(const memory& bytes) {
    const std::lock_guard lock(mutex_);
    by_address_.emplace(bytes.data, bytes.owner);
  }
  std::shared_ptr<const void> remove(void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = by_address_.find(data);
    auto owner = std::move(found->second);
    by_address_.erase(found);
    return owner;
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<void*, std::shared_ptr<const void>> by_address_;
};

// Never destroyed: tensors may go while the process ends.
owners& all_owners() {
  static auto* all = new owners;
  return *all;
}

}  // namespace

at::Tensor tensor_over(memory bytes, at::IntArrayRef shape, const at::TensorOptions& options) {
  all_owners().add(bytes);
  c10::DataPtr data(bytes.data, bytes.data, [](void* of) { all_owners().remove(of); }, c10::Device(c10::kCPU));
  // With torch's own allocator and resizable, so that resize_ moves it to ordinary memory.
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes.size, std::move(data),
                                                       c10::GetCPUAllocator(), true);
  auto result = at::empty({0}, options);
  result.set_(c10::Storage(std::move(storage)), 0, shape, c10::contiguous_strides(shape));
  return result;
}

}  // namespace sheaf
