// SPDX-License-Identifier: MIT
// Packed blocks to and from their places in the gathered tensor, in device memory, of any alignment. One launch; beyond
// 64 ranks a table goes to the device before it.
// No call waits for the device or keeps host memory, so all of them can be captured in a graph.
#pragma once

#include <sheaf/layout.hpp>
#include <span>

struct CUstream_st;  // what cudaStream_t points to: this header needs no CUDA

namespace sheaf::cuda {

using stream = CUstream_st*;

// The device of `on` is the current one. Inputs and outputs do not overlap. Where `blocks` is a list it has one pointer
// a rank, block r being `at.block_bytes(r)` contiguous bytes; pointers of empty blocks are not looked at. A single
// pointer means all blocks, one after another. Throws std::invalid_argument for a wrong number of blocks and
// std::runtime_error with CUDA's words.
void place(const layout& at, std::span<const void* const> blocks, void* whole, stream on);
void place(const layout& at, const void* blocks, void* whole, stream on);

// The way back: every block out of the gathered tensor.
void pack(const layout& at, const void* whole, std::span<void* const> blocks, stream on);
void pack(const layout& at, const void* whole, void* blocks, stream on);

}  // namespace sheaf::cuda
