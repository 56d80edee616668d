// SPDX-License-Identifier: MIT
// What a rank does with bytes by itself, where they lie: in the host's memory, or in a device's, in the order of its
// current stream. Engines that move tensors by collectives need no more than this of a device.
#pragma once

#include <cstddef>
#include <sheaf/layout.hpp>
#include <span>

#include "core/dtype.hpp"
#include "core/header.hpp"
#include "core/sum.hpp"

namespace sheaf {

class local_work {
 public:
  virtual ~local_work() = default;
  // Every block into its place; blocks[r] is block r, contiguous.
  virtual void place(const layout& at, std::span<std::byte* const> blocks, std::byte* whole) const = 0;
  // Every block out of its place.
  virtual void pack(const layout& at, const std::byte* whole, std::span<std::byte* const> blocks) const = 0;
  // As sum_ranks does; rank r's part is the `bytes` bytes at sources + r * stride, which is a multiple of an element's
  // size. `out` is none of them.
  virtual void sum(dtype type, reduction op, int ranks, const std::byte* sources, std::int64_t stride, std::byte* out,
                   std::size_t bytes) const = 0;
  // Whether what is put on the current stream is recorded for later, not run.
  virtual bool is_capturing() const { return false; }
  // For a thread of Sheaf's own: what it asks of the device must not disturb what other threads record.
  virtual void ignore_captures() const {}
};

// Null where this build knows nothing of such a device.
const local_work* find_work(device_type where);
// To be called while the library is loaded; `work` stays for good.
void offer_work(device_type where, const local_work& work);

}  // namespace sheaf
