// SPDX-License-Identifier: MIT
// What a rank says of its call before any payload moves. On the wire: little-endian, a fixed prefix, one record a
// tensor, the refusal's text, then a payload that is small enough to ride along.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <sheaf/gradient.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/one_or_many.hpp"

namespace sheaf {

enum class operation : std::uint8_t {
  hello = 0,
  all_gather,
  reduce_scatter,
  gather_sizes,
  all_gather_coalesced,
  reduce_scatter_coalesced
};
constexpr bool is_gather(operation op) { return op == operation::all_gather || op == operation::all_gather_coalesced; }
constexpr bool is_reduction(operation op) {
  return op == operation::reduce_scatter || op == operation::reduce_scatter_coalesced;
}
enum class device_type : std::uint8_t { cpu = 0, cuda, other };
// Whether this rank's result will be differentiated: `off` is no_grad, `idle` is an input that needs no gradient.
enum class recording : std::uint8_t { off = 0, idle, on };

std::string_view name(operation op);
std::string_view name(device_type device);
std::string_view name(gradient mode);

struct record {
  static constexpr int max_dims = 8;
  dtype type = dtype::float32;
  device_type device = device_type::cpu;
  std::int8_t dim = 0;  // counted from the front
  std::uint8_t ndim = 0;
  std::array<std::int64_t, max_dims> shape{};
  // What coalesced calls say of each tensor; of a call with one tensor the header says it.
  gradient mode = gradient::sum;
  recording records_gradient = recording::off;
  bool sized = false;

  std::span<const std::int64_t> dims() const { return {shape.data(), ndim}; }
  bool has_rows() const { return dim >= 0 && dim < ndim; }
  std::int64_t& rows() { return shape[dim]; }
  std::int64_t rows() const { return shape[dim]; }
  friend bool operator==(const record&, const record&) = default;
};

struct header {
  operation op = operation::hello;
  gradient mode = gradient::sum;
  recording records_gradient = recording::off;
  bool sized = false;          // sizes were given, not learned
  bool apart = false;          // started, or the backward of what was: other threads than the program's may make it
  std::uint8_t follows = 0;    // so many calls come after it in the same step of the program's, up to most_follow
  std::uint64_t sequence = 0;  // this group's calls, counted from 1
  std::uint64_t origin = 0;    // the call this one differentiates; 0: none
  one_or_many<record> tensors;
  std::string refusal;  // why this rank refuses; empty: it does not

  friend bool operator==(const header&, const header&) = default;
};

inline constexpr std::uint16_t protocol_version = 6;
inline constexpr std::uint8_t most_follow = 3;
inline constexpr std::size_t max_tensors = 64;
inline constexpr std::size_t max_refusal = 512;    // bytes; longer texts are cut
inline constexpr std::size_t inline_bytes = 8192;  // payload up to here rides in the header's frame
inline constexpr std::size_t frame_capacity = 16384;
inline constexpr std::size_t header_capacity = 5120;  // the longest header fits, without payload

struct frame {
  header head;
  std::span<const std::byte> payload;
  std::shared_ptr<const void> owner = {};  // of the payload; empty: as decode() and exchange() say
};

// The frame with a payload of its own.
frame with_own_payload(frame read);

// A hash of all that ranks in one call must agree on: the header without its number and, of gathers, without rows, and
// the sizes given. 0: of a header that is like no other, since it refuses, or makes no sense.
std::uint64_t gist(const header& head, std::span<const std::int64_t> numbers);
// The rows of one tensor, from the bytes of a header of the same gist.
std::int64_t read_rows(std::span<const std::byte> bytes, const header& like, std::size_t tensor);

// At most max_refusal bytes, whole characters.
std::string cut_refusal(std::string_view text);

std::vector<std::byte> encode(const header& head, std::span<const std::byte> payload = {});
// A header without payload into `to`; returns how long it is.
std::size_t encode_header(const header& head, std::span<std::byte> to);
// nullopt: not a frame of this protocol version, cut short, or with a value out of range. The payload lies in `bytes`.
std::optional<frame> decode(std::span<const std::byte> bytes);

// Whether it is the first step of a gather that learns its sizes by a call of their own.
constexpr bool is_sizes_first(const header& head) { return head.op == operation::gather_sizes && head.follows > 0; }
// As the program knows it: "all_gather".
std::string shown_op(const header& head);
// "all_gather #17"
std::string title(const header& head);
// "all_gather #17 (float32 [3, 4], dim 0)"
std::string describe(const header& head);

}  // namespace sheaf
