// SPDX-License-Identifier: MIT
#include "torch/result.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>
#include <unordered_map>

#include "core/small.hpp"

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

c10::intrusive_ptr<c10::StorageImpl> storage_over(void* data, std::size_t bytes, c10::DeleterFnPtr drop) {
  // With torch's own allocator and resizable, so that resize_ moves it to ordinary memory.
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(data, data, drop, c10::Device(c10::kCPU)),
                                               c10::GetCPUAllocator(), true);
}

}  // namespace

at::Tensor small_tensor(at::IntArrayRef shape, at::ScalarType type) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  auto result =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage_over(small::take(bytes), bytes, small::give_back)),
                                               c10::DispatchKey::CPU, c10::scalarTypeToTypeMeta(type));
  result.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return result;
}

at::Tensor tensor_over(memory bytes, at::IntArrayRef shape, const at::TensorOptions& options) {
  all_owners().add(bytes);
  auto storage = storage_over(bytes.data, bytes.size, [](void* of) { all_owners().remove(of); });
  auto result = at::empty({0}, options);
  result.set_(c10::Storage(std::move(storage)), 0, shape, c10::contiguous_strides(shape));
  return result;
}

}  // namespace sheaf
