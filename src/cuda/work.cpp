// SPDX-License-Identifier: MIT
// What a rank does with bytes in a GPU's memory, on torch's current stream; offered when the library is loaded.
#include "core/work.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cuda/place.hpp"
#include "cuda/sum.hpp"

namespace sheaf::cuda {
namespace {

class device_work final : public local_work {
 public:
  void place(const layout& at, std::span<std::byte* const> blocks, std::byte* whole) const override {
    const std::vector<const void*> from(blocks.begin(), blocks.end());
    cuda::place(at, std::span<const void* const>(from), whole, current());
  }
  void pack(const layout& at, const std::byte* whole, std::span<std::byte* const> blocks) const override {
    const std::vector<void*> to(blocks.begin(), blocks.end());
    cuda::pack(at, whole, std::span<void* const>(to), current());
  }
  void sum(dtype type, reduction op, int ranks, const std::byte* sources, std::int64_t stride, std::byte* out,
           std::size_t bytes) const override {
    cuda::sum(type, op, ranks, sources, stride, out, bytes, current());
  }

  bool is_capturing() const override {
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }

  void ignore_captures() const override {
    auto mode = cudaStreamCaptureModeThreadLocal;
    C10_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
  }

 private:
  static stream current() { return c10::cuda::getCurrentCUDAStream().stream(); }
};

const device_work work;
[[maybe_unused]] const bool offered = (offer_work(device_type::cuda, work), true);

}  // namespace
}  // namespace sheaf::cuda
