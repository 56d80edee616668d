// SPDX-License-Identifier: MIT
#include "core/header.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/text.hpp"

namespace sheaf {
namespace {

// The prefix: magic (4), version (2), byte order (1), op (1), mode (1), recording (1), sized, apart and what follows
// (1), number of tensors (1), length of the refusal (2), length of the payload (2), sequence (8), origin (8). A record:
// dtype (1), device (1), dim (1), ndim (1), max_dims extents (8 each; zero beyond ndim), mode (1), recording (1), sized
// (1).
constexpr std::array<std::uint8_t, 4> magic{'S', 'h', 'e', 'f'};
constexpr std::uint8_t little_endian = 1;
constexpr std::uint8_t sized_bit = 1, apart_bit = 2, follows_shift = 2;
constexpr std::size_t prefix_bytes = 32;
constexpr std::size_t record_bytes = 4 + 8 * record::max_dims + 3;
static_assert(prefix_bytes + max_tensors * record_bytes + max_refusal <= header_capacity);
static_assert(header_capacity + inline_bytes <= frame_capacity);
static_assert(frame_capacity <= UINT16_MAX);

// What is put is what memory holds; CMake refuses hosts of another byte order.
static_assert(std::endian::native == std::endian::little);

class writer {
 public:
  explicit writer(std::byte* to) : to_(to) {}

  template <class Int>
  void put(Int value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  template <class Enum>
  void put_enum(Enum value) {
    put(static_cast<std::uint8_t>(value));
  }
  void put_bytes(std::span<const std::byte> more) {
    if (!more.empty()) std::memcpy(to_, more.data(), more.size());
    to_ += more.size();
  }

 private:
  std::byte* to_;
};

// Reads until something is out of range; from then on everything is zero and ok() is false.
class reader {
 public:
  explicit reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  void require(bool condition) { ok_ &= condition; }

  template <class Int>
  Int get() {
    Int value{};
    const auto from = get_bytes(sizeof(Int));
    if (!from.empty()) std::memcpy(&value, from.data(), sizeof(Int));
    return value;
  }
  template <class Enum>
  Enum get_enum(Enum last) {
    const auto value = get<std::uint8_t>();
    require(value <= static_cast<std::uint8_t>(last));
    return static_cast<Enum>(ok_ ? value : 0);
  }
  std::span<const std::byte> get_bytes(std::size_t count) {
    require(count <= bytes_.size());
    if (!ok_) return {};
    const auto front = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return front;
  }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

// At most max_refusal bytes, and no half of a UTF-8 sequence at the end.
std::string_view cut(std::string_view text) {
  if (text.size() <= max_refusal) return text;
  auto end = max_refusal;
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  while (continues(end) && end > max_refusal - 3) --end;
  return text.substr(0, end);
}

void put_record(writer& out, const record& tensor) {
  if (tensor.ndim > record::max_dims) {
    throw std::length_error("a header holds at most " + std::to_string(record::max_dims) + " dims, got " +
                            std::to_string(tensor.ndim));
  }
  out.put_enum(tensor.type);
  out.put_enum(tensor.device);
  out.put(tensor.dim);
  out.put(tensor.ndim);
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) out.put(i < tensor.ndim ? tensor.shape[i] : std::int64_t{0});
  out.put_enum(tensor.mode);
  out.put_enum(tensor.records_gradient);
  out.put(static_cast<std::uint8_t>(tensor.sized));
}

// A rank that refuses may do so because of its dim, so there any will do.
record get_record(reader& in, bool refused) {
  record tensor;
  tensor.type = in.get_enum(static_cast<dtype>(dtype_count - 1));
  tensor.device = in.get_enum(device_type::other);
  tensor.dim = in.get<std::int8_t>();
  tensor.ndim = in.get<std::uint8_t>();
  in.require(tensor.ndim <= record::max_dims);
  in.require(refused || (tensor.dim >= 0 && tensor.dim < std::max<int>(tensor.ndim, 1)));
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    tensor.shape[i] = in.get<std::int64_t>();
    in.require(i < tensor.ndim ? tensor.shape[i] >= 0 : tensor.shape[i] == 0);
  }
  tensor.mode = in.get_enum(gradient::own);
  tensor.records_gradient = in.get_enum(recording::on);
  const auto sized = in.get<std::uint8_t>();
  in.require(sized <= 1);
  tensor.sized = sized == 1;
  return tensor;
}

std::string describe(const record& tensor) {
  return std::string(name(tensor.type)) + " " + list(tensor.dims()) + ", dim " + std::to_string(tensor.dim);
}

}  // namespace

std::string_view name(operation op) {
  switch (op) {
    case operation::hello:
      return "hello";
    case operation::all_gather:
      return "all_gather";
    case operation::reduce_scatter:
      return "reduce_scatter";
    case operation::gather_sizes:
      return "gather_sizes";
    case operation::all_gather_coalesced:
      return "all_gather_coalesced";
    case operation::reduce_scatter_coalesced:
      return "reduce_scatter_coalesced";
  }
  return "unknown";
}

std::string_view name(device_type device) {
  switch (device) {
    case device_type::cpu:
      return "cpu";
    case device_type::cuda:
      return "cuda";
    case device_type::other:
      return "another device";
  }
  return "unknown";
}

std::string_view name(gradient mode) {
  switch (mode) {
    case gradient::sum:
      return "sum";
    case gradient::mean:
      return "mean";
    case gradient::own:
      return "own";
  }
  return "unknown";
}

std::string cut_refusal(std::string_view text) { return std::string(cut(text)); }

namespace {

std::size_t length_of(const header& head, std::string_view refusal, std::size_t payload, std::size_t capacity) {
  const auto bytes = prefix_bytes + head.tensors.size() * record_bytes + refusal.size() + payload;
  if (head.tensors.size() <= max_tensors && bytes <= capacity) return bytes;
  throw std::length_error("a header frame holds at most " + std::to_string(max_tensors) + " tensors and " +
                          std::to_string(capacity) + " bytes, got " + std::to_string(head.tensors.size()) +
                          " tensors and " + std::to_string(bytes) + " bytes");
}

void put(writer& out, const header& head, std::string_view refusal, std::span<const std::byte> payload) {
  out.put_bytes(std::as_bytes(std::span(magic)));
  out.put(protocol_version);
  out.put(little_endian);
  out.put_enum(head.op);
  out.put_enum(head.mode);
  out.put_enum(head.records_gradient);
  out.put(static_cast<std::uint8_t>((head.sized ? sized_bit : 0) | (head.apart ? apart_bit : 0) |
                                    std::min(head.follows, most_follow) << follows_shift));
  out.put(static_cast<std::uint8_t>(head.tensors.size()));
  out.put(static_cast<std::uint16_t>(refusal.size()));
  out.put(static_cast<std::uint16_t>(payload.size()));
  out.put(head.sequence);
  out.put(head.origin);
  for (const auto& tensor : head.tensors) put_record(out, tensor);
  out.put_bytes(std::as_bytes(std::span(refusal)));
  out.put_bytes(payload);
}

}  // namespace

std::vector<std::byte> encode(const header& head, std::span<const std::byte> payload) {
  const auto refusal = cut(head.refusal);
  std::vector<std::byte> bytes(length_of(head, refusal, payload.size(), frame_capacity));
  writer out(bytes.data());
  put(out, head, refusal, payload);
  return bytes;
}

std::size_t encode_header(const header& head, std::span<std::byte> to) {
  const auto refusal = cut(head.refusal);
  const auto bytes = length_of(head, refusal, 0, to.size());
  writer out(to.data());
  put(out, head, refusal, {});
  return bytes;
}

std::optional<frame> decode(std::span<const std::byte> bytes) {
  reader in(bytes);
  for (const auto letter : magic) in.require(in.get<std::uint8_t>() == letter);
  in.require(in.get<std::uint16_t>() == protocol_version);
  in.require(in.get<std::uint8_t>() == little_endian);

  frame read;
  auto& head = read.head;
  head.op = in.get_enum(operation::reduce_scatter_coalesced);
  head.mode = in.get_enum(gradient::own);
  head.records_gradient = in.get_enum(recording::on);
  const auto bits = in.get<std::uint8_t>();
  const auto tensors = in.get<std::uint8_t>();
  const auto refusal_bytes = in.get<std::uint16_t>();
  const auto payload_bytes = in.get<std::uint16_t>();
  in.require(bits >> follows_shift <= most_follow && tensors <= max_tensors && refusal_bytes <= max_refusal);
  head.sized = bits & sized_bit;
  head.apart = bits & apart_bit;
  head.follows = bits >> follows_shift;
  head.sequence = in.get<std::uint64_t>();
  head.origin = in.get<std::uint64_t>();
  if (in.ok()) head.tensors.reserve(tensors);
  for (std::size_t i = 0; in.ok() && i < tensors; ++i) head.tensors.push_back(get_record(in, refusal_bytes > 0));
  const auto refusal = in.get_bytes(refusal_bytes);
  head.refusal.assign(reinterpret_cast<const char*>(refusal.data()), refusal.size());
  const auto payload = in.get_bytes(payload_bytes);
  in.require(prefix_bytes + tensors * record_bytes + refusal_bytes + payload_bytes <= frame_capacity);
  if (!in.ok()) return std::nullopt;
  read.payload = payload;
  return read;
}

std::uint64_t gist(const header& head, std::span<const std::int64_t> numbers) {
  if (head.tensors.empty() || !head.refusal.empty()) return 0;
  std::uint64_t hash = 0x9e3779b97f4a7c15u + protocol_version;
  const auto mix = [&](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdu;
    hash ^= hash >> 32;
  };
  const auto bits = [](auto... bytes) {
    std::uint64_t word = 0;
    ((word = word << 8 | static_cast<std::uint8_t>(bytes)), ...);
    return word;
  };
  mix(bits(head.op, head.mode, head.records_gradient, head.sized, head.apart, head.follows, head.tensors.size()));
  mix(head.origin);
  const bool fixed = is_reduction(head.op);
  for (const auto& tensor : head.tensors) {
    if (!tensor.has_rows() || tensor.rows() < 0) return 0;
    mix(bits(tensor.type, tensor.device, tensor.dim, tensor.ndim, tensor.mode, tensor.records_gradient, tensor.sized));
    for (int d = 0; d < tensor.ndim; ++d) {
      if (fixed || d != tensor.dim) mix(static_cast<std::uint64_t>(tensor.shape[d]));
    }
  }
  for (const auto number : numbers) mix(static_cast<std::uint64_t>(number));
  return hash == 0 ? 1 : hash;
}

std::int64_t read_rows(std::span<const std::byte> bytes, const header& like, std::size_t tensor) {
  std::int64_t rows = 0;
  const auto shape_at = prefix_bytes + tensor * record_bytes + 4;
  std::memcpy(&rows, bytes.data() + shape_at + sizeof rows * like.tensors[tensor].dim, sizeof rows);
  return rows;
}

frame with_own_payload(frame read) {
  auto kept = std::make_shared<const std::vector<std::byte>>(read.payload.begin(), read.payload.end());
  read.payload = *kept;
  read.owner = std::move(kept);
  return read;
}

// A coalesced call of one tensor passes for a plain one.
std::string shown_op(const header& head) {
  if (!is_sizes_first(head)) return std::string(name(head.op));
  return std::string(name(head.tensors.size() > 1 ? operation::all_gather_coalesced : operation::all_gather));
}

std::string title(const header& head) { return shown_op(head) + " #" + std::to_string(head.sequence); }

std::string describe(const header& head) {
  std::string text;
  const auto add = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  if (is_sizes_first(head)) add("sizes first");
  for (const auto& tensor : head.tensors) add(describe(tensor));
  if (head.origin != 0) add("differentiates #" + std::to_string(head.origin));
  return text.empty() ? title(head) : title(head) + " (" + text + ")";
}

}  // namespace sheaf
