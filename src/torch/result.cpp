// SPDX-License-Identifier: MIT
#include "torch/result.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
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

// Blocks of one size each, aligned as torch's allocator does it, which takes longer than all the rest of a small
// tensor. A line before the data says which size it is: a storage's context must be its data here, too.
class small_blocks {
 public:
  static void* take(std::size_t bytes) {
    const auto which = class_of(bytes);
    auto& mine = cache();
    if (mine.alive && mine.counts[which] > 0) return mine.free[which][--mine.counts[which]];
    void* block = nullptr;
    if (posix_memalign(&block, line, line + (line << which)) != 0) throw std::bad_alloc();
    *static_cast<std::size_t*>(block) = which;
    return static_cast<std::byte*>(block) + line;
  }

  static void give_back(void* data) {
    auto& mine = cache();
    const auto which = *reinterpret_cast<std::size_t*>(static_cast<std::byte*>(data) - line);
    if (mine.alive && mine.counts[which] < most) {
      mine.free[which][mine.counts[which]++] = data;
    } else {
      std::free(static_cast<std::byte*>(data) - line);
    }
  }

 private:
  static constexpr std::size_t line = 64, classes = 7, most = 32;
  static_assert(line << (classes - 1) == small_bytes);

  struct kept {
    bool alive = true;  // tensors may go after this thread's variables
    std::array<std::size_t, classes> counts{};
    std::array<std::array<void*, most>, classes> free;

    ~kept() {
      alive = false;
      for (std::size_t which = 0; which < classes; ++which) {
        for (std::size_t i = 0; i < counts[which]; ++i) std::free(static_cast<std::byte*>(free[which][i]) - line);
      }
    }
  };
  static kept& cache() {
    thread_local kept mine;
    return mine;
  }
  static std::size_t class_of(std::size_t bytes) {
    std::size_t which = 0;
    while (line << which < bytes) ++which;
    return which;
  }
};

c10::intrusive_ptr<c10::StorageImpl> storage_over(void* data, std::size_t bytes, c10::DeleterFnPtr drop) {
  // With torch's own allocator and resizable, so that resize_ moves it to ordinary memory.
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(data, data, drop, c10::Device(c10::kCPU)),
                                               c10::GetCPUAllocator(), true);
}

}  // namespace

at::Tensor small_tensor(at::IntArrayRef shape, at::ScalarType type) {
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(shape)) * c10::elementSize(type);
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_over(small_blocks::take(bytes), bytes, small_blocks::give_back)), c10::DispatchKey::CPU,
      c10::scalarTypeToTypeMeta(type));
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
