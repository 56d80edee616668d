// SPDX-License-Identifier: MIT
// Random bytes never crash the decoder, and what it accepts it encodes again to the same header.
#include "core/header.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "core/verdict.hpp"

namespace {

std::optional<sheaf::frame> decode_checked(std::span<const std::byte> bytes) {
  auto read = sheaf::decode(bytes);
  if (!read) return read;
  const auto wire = sheaf::encode(read->head, read->payload);  // the payload read lies in it
  const auto again = sheaf::decode(wire);
  if (!again || !(again->head == read->head) || !std::ranges::equal(again->payload, read->payload)) std::abort();
  static_cast<void>(sheaf::describe(read->head));
  return sheaf::with_own_payload(std::move(*read));  // `bytes` may go before it
}

// The decoder's first look is at seven fixed bytes that chance would hardly find.
std::vector<std::byte> with_magic(std::span<const std::byte> rest) {
  static const auto empty = sheaf::encode({});
  std::vector<std::byte> bytes(empty.begin(), empty.begin() + 7);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

}  // namespace

// The input is bytes as they are, one frame behind the magic, and three frames that are judged together.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode_checked(bytes);
  const auto whole = decode_checked(with_magic(bytes));
  std::vector<std::optional<sheaf::frame>> frames{whole, whole, whole};
  static_cast<void>(sheaf::verdict(frames));
  for (std::size_t i = 0; i < 3; ++i) {
    frames[i] = decode_checked(with_magic(bytes.subspan(i * (size / 3), size / 3)));
    static_cast<void>(sheaf::verdict(frames));
  }
  return 0;
}
