// SPDX-License-Identifier: MIT
#include "cpp/truth.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sstream>

namespace sheaf::test {
namespace {

// What is larger saturates; torch's casts do so only since 2.13.
constexpr double largest_e4m3fn = 448;

bool is_narrow(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kComplexHalf || c10::isFloat8Type(type);
}

// ATen adds few of the unsigned types; wrapping is the same for the signed ones of their width.
at::ScalarType type_to_add_in(at::ScalarType type) {
  switch (type) {
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    case at::kComplexHalf:
      return at::kHalf;
    case at::kComplexFloat:
      return at::kFloat;
    case at::kComplexDouble:
      return at::kDouble;
    default:
      return type;
  }
}

std::string shown(const at::Tensor& x) {
  std::ostringstream text;
  text << c10::toString(x.scalar_type()) << " " << x.sizes();
  if (x.numel() > 0 && x.numel() <= 64) text << "\n" << (c10::isFloat8Type(x.scalar_type()) ? x.to(at::kFloat) : x);
  return text.str();
}

[[noreturn]] void fail(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  throw std::runtime_error(what + ": got " + shown(got) + "\nwant " + shown(want));
}

bool same_form(const at::Tensor& got, const at::Tensor& want) {
  return got.defined() && got.scalar_type() == want.scalar_type() && got.sizes() == want.sizes();
}

}  // namespace

at::Tensor noise(at::IntArrayRef shape, std::uint64_t seed, at::ScalarType type, double spread) {
  auto generator = at::detail::createCPUGenerator(seed);
  if (c10::isFloatingType(type)) {
    auto values = at::randn(shape, generator, at::TensorOptions(at::kDouble)).mul_(spread);
    if (type == at::kFloat8_e4m3fn) values.clamp_(-largest_e4m3fn, largest_e4m3fn);
    return values.to(type).to(device());
  }
  if (c10::isComplexType(type)) {
    auto both = shape.vec();
    both.push_back(2);
    return at::view_as_complex(noise(both, seed, c10::toRealValueType(type), spread));
  }
  const auto count = c10::multiply_integers(shape) * static_cast<std::int64_t>(c10::elementSize(type));
  auto bytes = at::randint(0, type == at::kBool ? 2 : 256, {count}, generator, at::TensorOptions(at::kByte));
  return bytes.view(type).reshape(shape).to(device());
}

c10::Device& device() {
  static c10::Device where(at::kCPU);
  return where;
}

std::int64_t ragged::rows() const { return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}); }

extents ragged::shape_with(std::int64_t rows) const {
  auto result = shape;
  result[dim < 0 ? dim + shape.size() : dim] = rows;
  return result;
}

at::Tensor ragged::block(int rank) const { return noise(shape_with(sizes[rank]), 1000 * seed + rank, type); }

at::Tensor ragged::whole(int rank) const { return noise(shape_with(rows()), 1000 * seed + 500 + rank, type); }

at::Tensor ragged::rows_of(const at::Tensor& whole, int rank) const {
  const auto first = std::accumulate(sizes.begin(), sizes.begin() + rank, std::int64_t{0});
  return whole.narrow(dim, first, sizes[rank]).clone(at::MemoryFormat::Contiguous);
}

at::Tensor ragged::joined(const std::vector<at::Tensor>& blocks) const {
  auto result = at::empty(shape_with(rows()), blocks[0].options());
  std::int64_t first = 0;
  for (int rank = 0; rank < world(); ++rank) {
    result.narrow(dim, first, sizes[rank]).copy_(blocks[rank]);
    first += sizes[rank];
  }
  return result;
}

at::Tensor ragged::gathered() const {
  std::vector<at::Tensor> blocks;
  for (int rank = 0; rank < world(); ++rank) blocks.push_back(block(rank));
  return joined(blocks);
}

at::Tensor ragged::summed() const {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world(); ++rank) all.push_back(whole(rank));
  return sum_truth(all, false);
}

at::Tensor ragged::averaged() const {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < world(); ++rank) all.push_back(whole(rank));
  return sum_truth(all, true);
}

at::Tensor ragged::sizes_tensor() const { return at::tensor(sizes, at::kLong); }

std::optional<at::Tensor> ragged::sizes_if(bool given) const {
  return given ? std::optional(sizes_tensor()) : std::nullopt;
}

std::string ragged::text() const {
  std::ostringstream text;
  text << "sizes " << at::IntArrayRef(sizes) << " dim " << dim << " of " << at::IntArrayRef(shape) << " "
       << c10::toString(type) << " seed " << seed;
  return text.str();
}

std::vector<extents> size_patterns(int world) {
  std::vector<extents> patterns{extents(world, 3), extents(world), extents(world, 0)};
  std::iota(patterns[1].begin(), patterns[1].end(), 1);
  for (int chosen = 0; chosen < world; ++chosen) {
    extents one_empty(world, 2);
    one_empty[chosen] = 0;
    extents one_full(world, 0);
    one_full[chosen] = 5;
    patterns.push_back(one_empty);
    patterns.push_back(one_full);
  }
  return patterns;
}

at::Tensor sum_truth(const std::vector<at::Tensor>& values, bool mean) {
  const auto type = values[0].scalar_type();
  const auto element = type_to_add_in(type);
  const auto reals = [&](const at::Tensor& x) { return x.cpu().contiguous().reshape({-1}).view(element); };
  auto total = is_narrow(type) ? reals(values[0]).to(at::kFloat) : reals(values[0]).clone();
  for (std::size_t rank = 1; rank < values.size(); ++rank) total.add_(reals(values[rank]).to(total.scalar_type()));
  if (mean) total.div_(static_cast<std::int64_t>(values.size()));
  if (type == at::kFloat8_e4m3fn) total.clamp_(-largest_e4m3fn, largest_e4m3fn);
  return total.to(element).view(type).reshape(values[0].sizes()).to(device());
}

at::Tensor divided(const at::Tensor& x, std::int64_t by) {
  const auto on_host = x.cpu();
  return (x.is_complex() ? at::view_as_complex(at::view_as_real(on_host) / by) : on_host / by).to(device());
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

void expect_equal(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  if (!got.defined()) throw std::runtime_error(what + ": got no tensor");
  if (!same_form(got, want)) fail(got, want, what);
  const auto left = got.cpu().resolve_conj().contiguous();
  const auto right = want.cpu().resolve_conj().contiguous();
  if (left.nbytes() == 0) return;
  if (std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) != 0) fail(got, want, what);
}

void expect_close(const at::Tensor& got, const at::Tensor& want, const std::string& what) {
  if (!got.defined()) throw std::runtime_error(what + ": got no tensor");
  if (!same_form(got, want) || !at::allclose(got.cpu(), want.cpu(), 1e-9, 1e-9)) fail(got, want, what);
}

void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "\"" + text + "\" has \"" + part + "\" in it");
}

bool is_shared(const group& me) { return me.engine().starts_with("cpu: shm"); }

bool headers_are_compared(const group& me) {
  const auto* check = std::getenv("SHEAF_CHECK");
  return is_shared(me) || (check && std::string(check) == "1");
}

void expect_same_everywhere(const group& me, const std::string& text) {
  auto bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const auto [all, sizes] = all_gather(bytes, {.group = me});
  for (const auto& theirs : split(all, sizes)) {
    const std::string other(static_cast<const char*>(theirs.const_data_ptr()), theirs.numel());
    expect(other == text, "all ranks say \"" + text + "\", one says \"" + other + "\"");
  }
}

at::Tensor leaf(const at::Tensor& x) { return x.detach().clone(at::MemoryFormat::Preserve).requires_grad_(); }

at::Tensor grad_of(const at::Tensor& y, const at::Tensor& x, const at::Tensor& upstream, bool differentiable) {
  return torch::autograd::grad({y}, {x}, {upstream}, /*retain_graph=*/true, differentiable)[0];
}

const char* name_of(gradient mode) { return mode == gradient::sum ? "sum" : mode == gradient::mean ? "mean" : "own"; }

}  // namespace sheaf::test
