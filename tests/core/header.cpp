// SPDX-License-Identifier: MIT
// What is encoded comes back; what is not a frame of this protocol does not.
#include "core/header.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/verdict.hpp"

namespace {

using namespace sheaf;
using bytes = std::vector<std::byte>;

header example() {
  header head;
  head.op = operation::all_gather;
  head.mode = gradient::mean;
  head.records_gradient = recording::on;
  head.sequence = 17;
  head.tensors = {{dtype::float32, device_type::cpu, 0, 2, {3, 4}}};
  return head;
}

header random_header(std::mt19937_64& random) {
  const auto draw = [&](std::uint64_t last) { return std::uniform_int_distribution<std::uint64_t>(0, last)(random); };
  header head;
  head.op = static_cast<operation>(draw(5));
  head.mode = static_cast<gradient>(draw(2));
  head.records_gradient = static_cast<recording>(draw(2));
  head.sized = draw(1);
  head.apart = draw(1);
  head.follows = static_cast<std::uint8_t>(draw(most_follow));
  head.sequence = random();
  head.origin = draw(1) ? random() : 0;
  head.tensors.grow(draw(3) == 0 ? draw(max_tensors) : draw(2));
  for (auto& tensor : head.tensors) {
    tensor.type = static_cast<dtype>(draw(dtype_count - 1));
    tensor.device = static_cast<device_type>(draw(2));
    tensor.ndim = static_cast<std::uint8_t>(draw(record::max_dims));
    tensor.dim = static_cast<std::int8_t>(draw(std::max<int>(tensor.ndim, 1) - 1));
    for (int d = 0; d < tensor.ndim; ++d) tensor.shape[d] = static_cast<std::int64_t>(random() >> (1 + draw(62)));
    tensor.mode = static_cast<gradient>(draw(2));
    tensor.records_gradient = static_cast<recording>(draw(2));
    tensor.sized = draw(1);
  }
  if (draw(1)) head.refusal.resize(draw(max_refusal));
  for (auto& letter : head.refusal) letter = static_cast<char>(draw(127));
  return head;
}

TEST(header, random_headers_come_back) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    const auto head = random_header(random);
    bytes payload(random() % (inline_bytes + 1));
    for (auto& byte : payload) byte = static_cast<std::byte>(random());
    auto wire = encode(head, payload);
    ASSERT_LE(wire.size(), frame_capacity);
    // Receivers have room for the largest frame, so anything may follow.
    wire.resize(wire.size() + random() % 100, std::byte{0xAB});
    const auto read = decode(wire);
    ASSERT_TRUE(read);
    ASSERT_EQ(read->head, head);
    ASSERT_EQ(bytes(read->payload.begin(), read->payload.end()), payload);
  }
}

using numbers = std::vector<std::int64_t>;

// One thing in each is another than in `head`, of those that ranks in one call must agree on.
std::vector<header> changed(const header& head) {
  std::vector<header> all;
  const auto change = [&](auto&& how) { how(all.emplace_back(head)); };
  const auto next = [](auto& value) { value = static_cast<std::remove_reference_t<decltype(value)>>(int(value) + 1); };
  change([&](header& one) { one.op = one.op == operation::hello ? operation::gather_sizes : operation::hello; });
  change([&](header& one) { next(one.mode); });
  change([&](header& one) { next(one.records_gradient); });
  change([&](header& one) { one.sized = !one.sized; });
  change([&](header& one) { one.apart = !one.apart; });
  change([&](header& one) { one.follows ^= 1; });
  change([&](header& one) { ++one.origin; });
  change([&](header& one) { one.tensors.push_back(one.tensors[0]); });
  for (std::size_t i = 0; i < head.tensors.size(); ++i) {
    const auto of = [&](auto&& how) { change([&](header& one) { how(one.tensors[i]); }); };
    of([&](record& tensor) { next(tensor.type); });
    of([&](record& tensor) { next(tensor.device); });
    of([&](record& tensor) { next(tensor.mode); });
    of([&](record& tensor) { next(tensor.records_gradient); });
    of([&](record& tensor) { tensor.sized = !tensor.sized; });
    of([&](record& tensor) {
      tensor.ndim < record::max_dims ? ++tensor.ndim : tensor.dim == 0 ? ++tensor.dim : --tensor.dim;
    });
    for (int d = 0; d < head.tensors[i].ndim; ++d) {
      if (d != head.tensors[i].dim || is_reduction(head.op)) of([&](record& tensor) { tensor.shape[d] ^= 1; });
    }
  }
  return all;
}

// Of what ranks must agree on; every gather has rows of its own, and every call a number.
TEST(header, a_gist_is_of_all_but_rows_and_number) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 3000; ++round) {
    auto head = random_header(random);
    head.refusal.clear();
    for (auto& tensor : head.tensors) tensor.ndim = std::max<std::uint8_t>(tensor.ndim, 1);
    const numbers given(random() % 3, static_cast<std::int64_t>(random() % 9));
    const auto own = gist(head, given);
    ASSERT_EQ(own == 0, head.tensors.empty());
    if (own == 0) continue;
    auto theirs = head;
    ++theirs.sequence;
    if (!is_reduction(head.op)) {
      for (auto& tensor : theirs.tensors) tensor.rows() = static_cast<std::int64_t>(random() >> 1);
    }
    ASSERT_EQ(gist(theirs, given), own);
    const auto wire = encode(theirs);
    for (std::size_t i = 0; i < head.tensors.size(); ++i) {
      ASSERT_EQ(read_rows(wire, head, i), theirs.tensors[i].rows());
    }
    for (const auto& other : changed(head)) ASSERT_NE(gist(other, given), own);
    auto more = given;
    more.push_back(0);
    ASSERT_NE(gist(head, more), own);
    theirs.refusal = "no";
    ASSERT_EQ(gist(theirs, given), 0u);
  }
}

TEST(header, bytes_on_the_wire_are_little_endian) {
  auto head = example();
  head.sequence = 0x0102030405060708;
  head.apart = true;
  head.follows = 3;
  const auto wire = encode(head);
  const bytes prefix{std::byte{'S'}, std::byte{'h'}, std::byte{'e'}, std::byte{'f'}, std::byte{6}, std::byte{0}};
  EXPECT_TRUE(std::ranges::equal(prefix, std::span(wire).first(6)));
  EXPECT_EQ(wire[10], std::byte{2 + 4 * 3}) << "not sized, but apart, and three follow";
  EXPECT_EQ(wire[16], std::byte{8});
  EXPECT_EQ(wire[23], std::byte{1});
  EXPECT_EQ(wire.size(), 32u + 71u);
}

TEST(header, a_frame_cut_anywhere_is_none) {
  auto head = example();
  head.refusal = "no";
  const bytes payload(5);
  const auto wire = encode(head, payload);
  for (std::size_t length = 0; length < wire.size(); ++length) {
    EXPECT_FALSE(decode(std::span(wire).first(length))) << length;
  }
  EXPECT_TRUE(decode(wire));
}

TEST(header, values_out_of_range_are_refused) {
  const auto wire = encode(example());
  const auto with = [&](std::size_t position, int value) {
    auto changed = wire;
    changed[position] = static_cast<std::byte>(value);
    return decode(changed).has_value();
  };
  ASSERT_TRUE(with(7, 1));
  EXPECT_FALSE(with(0, 'T')) << "magic";
  EXPECT_FALSE(with(4, protocol_version + 1)) << "version";
  EXPECT_FALSE(with(5, 1)) << "version, high byte";
  EXPECT_FALSE(with(6, 2)) << "byte order";
  EXPECT_FALSE(with(7, 6)) << "op";
  EXPECT_FALSE(with(8, 3)) << "gradient mode";
  EXPECT_FALSE(with(9, 3)) << "recording";
  EXPECT_FALSE(with(10, 16)) << "sized, apart and what follows";
  EXPECT_FALSE(with(11, 2)) << "more tensors than bytes";
  EXPECT_FALSE(with(12, 1)) << "more refusal than bytes";
  EXPECT_FALSE(with(14, 1)) << "more payload than bytes";
  EXPECT_FALSE(with(32, dtype_count)) << "dtype";
  EXPECT_FALSE(with(33, 3)) << "device";
  EXPECT_FALSE(with(34, 2)) << "dim";
  EXPECT_FALSE(with(34, -1)) << "negative dim";
  EXPECT_FALSE(with(35, 9)) << "ndim";
  EXPECT_FALSE(with(35, 1)) << "an extent beyond ndim";
  EXPECT_FALSE(with(36 + 7, 0x80)) << "negative extent";
  EXPECT_FALSE(with(100, 3)) << "gradient mode of a tensor";
  EXPECT_FALSE(with(101, 3)) << "recording of a tensor";
  EXPECT_FALSE(with(102, 2)) << "sized tensor";
}

TEST(header, whoever_refuses_may_have_any_dim) {
  auto head = example();
  head.tensors[0].dim = -7;
  EXPECT_FALSE(decode(encode(head)));
  head.refusal = "dim -7 is out of range";
  EXPECT_EQ(decode(encode(head))->head, head);
}

TEST(header, long_refusals_are_cut_between_characters) {
  auto head = example();
  head.refusal = std::string(600, 'x');
  EXPECT_EQ(decode(encode(head))->head.refusal, std::string(max_refusal, 'x'));
  // Characters of 2, 3 and 4 bytes across the limit, at every offset.
  for (const std::string character : {"\u00e9", "\u20ac", "\U0001F33E"}) {
    for (std::size_t before = 0; before < 4; ++before) {
      head.refusal = std::string(before, 'x');
      while (head.refusal.size() <= max_refusal) head.refusal += character;
      const auto expected = before + (max_refusal - before) / character.size() * character.size();
      EXPECT_EQ(decode(encode(head))->head.refusal, head.refusal.substr(0, expected));
    }
  }
  head.refusal = std::string(600, '\x80');  // no UTF-8 at all: cut, but not to nothing
  EXPECT_GE(decode(encode(head))->head.refusal.size(), max_refusal - 3);
}

TEST(header, frames_fit_or_are_refused) {
  auto head = example();
  head.tensors.grow(max_tensors, record(head.tensors[0]));
  head.refusal = std::string(max_refusal, 'x');
  EXPECT_TRUE(decode(encode(head, bytes(inline_bytes))));
  head.refusal.clear();
  EXPECT_TRUE(decode(encode(head, bytes(8 * max_given_numbers + inline_bytes))));
  EXPECT_THROW(encode(head, bytes(frame_capacity)), std::length_error);
  head.tensors.push_back(head.tensors[0]);
  EXPECT_THROW(encode(head), std::length_error);
  head = example();
  head.tensors[0].ndim = 9;
  EXPECT_THROW(encode(head), std::length_error);
}

TEST(header, in_words) {
  auto head = example();
  EXPECT_EQ(title(head), "all_gather #17");
  EXPECT_EQ(describe(head), "all_gather #17 (float32 [3, 4], dim 0)");
  head.tensors.push_back({dtype::boolean, device_type::cpu, 1, 2, {3, 0}});
  EXPECT_EQ(describe(head), "all_gather #17 (float32 [3, 4], dim 0; bool [3, 0], dim 1)");
  header backward;
  backward.op = operation::reduce_scatter;
  backward.sequence = 18;
  EXPECT_EQ(describe(backward), "reduce_scatter #18");
  backward.origin = 17;
  EXPECT_EQ(describe(backward), "reduce_scatter #18 (differentiates #17)");
}

TEST(header, dtypes_by_name_and_size) {
  EXPECT_EQ(name(dtype::boolean), "bool");
  EXPECT_EQ(name(dtype::bfloat16), "bfloat16");
  EXPECT_EQ(name(dtype::complex32), "complex32");
  EXPECT_EQ(itemsize(dtype::complex128), 16);
  EXPECT_EQ(itemsize(dtype::float8_e8m0fnu), 1);
  EXPECT_FALSE(is_integral(dtype::boolean));
  EXPECT_TRUE(is_integral(dtype::int8));
  EXPECT_TRUE(is_integral(dtype::uint64));
  EXPECT_FALSE(is_integral(dtype::float16));
}

}  // namespace
