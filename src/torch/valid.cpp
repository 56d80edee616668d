// SPDX-License-Identifier: MIT
#include "torch/valid.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <sheaf/error.hpp>
#include <string_view>

#include "core/text.hpp"
#include "torch/collective.hpp"
#include "torch/device.hpp"
#include "torch/errors.hpp"
#include "torch/group.hpp"
#include "torch/ops.hpp"
#include "torch/refusal.hpp"

namespace sheaf {
namespace {

// The gathers that follow where ranks have heard each other: of counts, and of buffers.
constexpr std::int64_t valid_follows = 2;

// What is known of one group.
struct state {
  std::weak_ptr<engine> of;
  std::set<std::string> seen;                 // kinds of buffers that were gathered before: others must not be captured
  std::map<std::string, at::Tensor> flags{};  // by device: whether a count was beyond its buffer
};

// Held by whoever looks at it.
struct locked_state {
  explicit locked_state(const std::shared_ptr<engine>& of) : lock(mutex()), now(find(of)) {}

  static std::mutex& mutex() {
    static std::mutex guards_all;
    return guards_all;
  }
  static state& find(const std::shared_ptr<engine>& of) {
    static auto& all = *new std::map<const engine*, state>;  // never freed: devices go before what is static
    std::erase_if(all, [](const auto& one) { return one.second.of.expired(); });
    auto& found = all[of.get()];
    found.of = of;
    return found;
  }

  const std::lock_guard<std::mutex> lock;
  state& now;
};

refusal check_valid(const at::Tensor& x, const all_gather_options& options) {
  const auto& valid = *options.valid;
  if (options.sizes) return "sizes and valid cannot both be given";
  if (const auto why = check_timeout(seconds_of(options.timeout))) return why;
  if (const auto why = check_dispatched(x)) return why;
  if (const auto why = check_tensor(x, options.dim)) return why;
  const bool is_plain = valid.defined() && !valid.is_nested() && valid.layout() == at::kStrided;
  if (!is_plain || !c10::isIntegralType(valid.scalar_type(), /*includeBool=*/false) || valid.numel() != 1) {
    return "valid must be a tensor of one integer";
  }
  if (valid.device() == x.device()) return std::nullopt;
  return "valid must be on the tensor's device, " + x.device().str() + ", got " + valid.device().str();
}

std::string kind_of(const at::Tensor& x, std::int64_t dim) {
  return list(x.sizes().vec()) + std::to_string(dim) + c10::toString(x.scalar_type()) + x.device().str();
}

constexpr std::string_view unprepared = "call with valid once before it is captured: the call sets up what it needs";

c10::impl::VirtualGuardImpl guard_of(const at::Tensor& x) { return c10::impl::VirtualGuardImpl(x.device().type()); }

// On a stream of its own, so that nothing else need be waited for, and any stream may write into it next.
at::Tensor new_flag(const at::Tensor& x) {
  const c10::InferenceMode off(false);  // calls outside of that mode write into it, too
  const auto options = x.options().dtype(at::kBool).requires_grad(false);
  if (!x.is_cuda()) return at::zeros({}, options);
  const auto stream = guard_of(x).getStreamFromGlobalPool(x.device());
  const c10::StreamGuard on(stream);
  auto flag = at::zeros({}, options);
  stream.synchronize();
  return flag;
}

at::Tensor flag_of(const std::shared_ptr<engine>& group, const at::Tensor& x) {
  locked_state known(group);
  auto& flag = known.now.flags[x.device().str()];
  if (!flag.defined()) {
    if (is_capturing(x.device())) throw value_error("all_gather: " + std::string(unprepared));
    flag = new_flag(x);
  }
  return flag;
}

// Graphs that were captured write into it for good.
void keep(const at::Tensor& flag) {
  static auto& kept = *new std::map<const void*, at::Tensor>;
  const std::lock_guard lock(locked_state::mutex());
  kept.emplace(flag.const_data_ptr(), flag);
}

// What this thread puts on the device next writes into it, even if the group is gone by then.
void keep_for_now(const at::Tensor& flag) {
  if (!flag.is_cpu()) flag.record_stream(guard_of(flag).getStream(flag.device()));
}

// Graphs may run on any stream.
void wait_for_device(const at::Tensor& x) {
  if (!x.is_cpu()) guard_of(x).synchronizeDevice(x.device().index());
}

bool is_set(const at::Tensor& flag) {
  wait_for_device(flag);
  return flag.item<bool>();
}

void clear(at::Tensor& flag) {
  wait_for_device(flag);
  flag.zero_();
  wait_for_device(flag);
}

// The call as those begin it whom others hear first.
arguments beginning(std::int64_t world, const std::string& group, timeout_argument timeout) {
  return {.op = operation::all_gather, .group = group, .world = world, .timeout = timeout, .follows = valid_follows};
}

// Tells the other ranks where they listen, and throws.
[[noreturn]] void refuse(std::string_view why, const arguments& with) {
  if (with.world > 1) refuse_for_all(std::string(why), with);
  throw value_error("all_gather: " + std::string(why));
}

// What fails in here on this rank alone, while the others come to their exchange, is told to them.
template <class Body>
auto told_to_all(const arguments& with, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& error) {
    try {
      refuse(first_line(error), with);
    } catch (const std::exception&) {
      // Here it is what it was.
    }
    throw;
  }
}

void refuse_other_capacities(engine& moves, const std::vector<std::int64_t>& rows) {
  if (std::ranges::all_of(rows, [&](auto count) { return count == rows[0]; })) return;
  moves.skip(valid_follows);
  throw value_error("all_gather: with valid all ranks' buffers must have the same rows, got " + list(rows));
}

// As an int64; what that does not hold stays beyond every buffer.
at::Tensor counted(const at::Tensor& valid) {
  const auto count = valid.detach().reshape({1}).to(at::kLong);
  if (valid.scalar_type() != at::kUInt64) return count;
  return count.masked_fill(count.lt(0), std::numeric_limits<std::int64_t>::max());
}

constexpr std::string_view was_clamped =
    "in an earlier call a rank's `valid` was negative or beyond its buffer's rows, and was clamped";

bool tells_of_clamping(const std::exception& error) {
  return std::string_view(error.what()).find(was_clamped) != std::string_view::npos;
}

}  // namespace

// A rank that sees its flag refuses, so that those raise as well that do not look, or see none; once is enough.
at::Tensor kernels::prepare_valid(const at::Tensor& x, std::int64_t dim, std::int64_t world, std::string grad,
                                  std::string group, bool look, timeout_argument timeout) {
  return translated([&] {
    const auto moves = find_engine(group);
    const auto kind = kind_of(x, dim);
    auto with = beginning(world, group, timeout);
    if (is_capturing(x.device())) {
      if (locked_state(moves).now.seen.contains(kind)) return sizes_tensor(std::vector(world, x.size(dim)));
      with.sized = true;  // who is prepared begins with the gather of counts
      --with.follows;
      refuse(unprepared, with);
    }
    bool is_clamped = false;
    auto flag = told_to_all(with, [&] {
      auto found = flag_of(moves, x);
      is_clamped = look && is_set(found);
      return found;
    });
    try {
      if (is_clamped) refuse(was_clamped, with);
      auto rows = world > 1 ? ops::gather_sizes(x, dim, world, group, timeout, grad, valid_follows)
                            : sizes_tensor({x.size(dim)});
      refuse_other_capacities(*moves, sizes_of(rows));
      if (!x.is_cpu()) locked_state(moves).now.seen.insert(kind);  // others are never captured
      return rows;
    } catch (const std::exception& error) {
      if (tells_of_clamping(error)) clear(flag);
      throw;
    }
  });
}

at::Tensor kernels::clamped(const at::Tensor& given, c10::SymInt capacity, std::string group) {
  return translated([&] {
    auto sizes = given.clamp(0, capacity.expect_int());
    const auto flag = flag_of(find_engine(group), given);
    if (is_capturing(given.device())) {
      keep(flag);
    } else {
      keep_for_now(flag);
    }
    flag.logical_or_(sizes.ne(given).any());
    return sizes;
  });
}

gathered gather_valid(const at::Tensor& x, const all_gather_options& options) {
  const std::int64_t world = options.group.world();
  const auto group = world > 1 ? options.group.name() : "";  // all groups of one are the same
  const auto timeout = seconds_of(options.timeout);
  if (const auto why = check_valid(x, options)) {
    auto with = beginning(world, group, timeout);
    with.sized = options.sizes.has_value();
    translated([&] { refuse(*why, with); });
  }
  const auto dim = options.dim < 0 ? options.dim + x.dim() : options.dim;
  const auto capacity = x.size(dim);
  const std::string grad(name(options.grad));
  auto given = counted(*options.valid);
  ops::prepare_valid(x, dim, world, grad, group, /*look=*/true, timeout);
  auto blocks = x;
  if (world > 1) {
    const auto ones = at::full({world}, 1, at::kLong);
    given = ops::all_gather_sized(given, ones, world, 0, world, "sum", group, "own", timeout, 0, valid_follows - 1);
    blocks = ops::all_gather_sized(x, ones * capacity, world * capacity, dim, world, "sum", group, grad, timeout, 0, 0);
  }
  const auto sizes = ops::clamped(given, capacity, group);
  return {ops::compact(blocks, sizes, dim), sizes};
}

}  // namespace sheaf
