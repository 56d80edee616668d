// SPDX-License-Identifier: MIT
// An engine moves bytes for one group; ops know nothing else of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <sheaf/layout.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/header.hpp"
#include "core/heard.hpp"
#include "core/stream.hpp"
#include "core/sum.hpp"

namespace sheaf {

class progress;

// Bytes and what keeps them alive. Engines hold the owner until nobody needs the bytes, whatever becomes of the call.
struct memory {
  std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;
  device_type device = device_type::cpu;  // where the bytes lie
  int device_index = 0;

  memory slice(std::size_t first, std::size_t count) const {
    return {data + first, count, owner, device, device_index};
  }
};

// How an engine takes tensors: not at all, as bytes that it may look at, or by what moves a device's memory, of which
// nothing rides along with headers.
enum class carriage : std::uint8_t { none, host, device };

memory allocate(std::size_t bytes);

// What rides along with a header: written once, when there is a place for it.
struct payload {
  std::size_t bytes = 0;
  std::span<const std::byte> source = {};         // it lies there as it is, ...
  std::function<void(std::byte* to)> write = {};  // ... or is made where it is wanted
  // What this rank alone will read of every other's, and so need not write; nothing: all read all.
  struct part {
    std::size_t first;
    std::size_t bytes;
  };
  std::optional<part> wanted = {};

  payload() = default;
  payload(std::size_t size, std::function<void(std::byte* to)> writes) : bytes(size), write(std::move(writes)) {}
  payload(std::span<const std::byte> data) : bytes(data.size()), source(data) {}
  payload(const std::vector<std::byte>& data) : payload(std::span(data)) {}
  // Of a reduction along dim 0: the own rows.
  payload(std::span<const std::byte> data, part wants) : payload(data) { wanted = wants; }

  void write_to(std::byte* to, readers next = readers::near) const;
  // In memory of its own, after the sizes given.
  std::shared_ptr<const std::vector<std::byte>> written(std::span<const std::int64_t> sizes) const;
};

// The time of the next tick, in a few milliseconds: for deadlines, at a fraction of what the exact one takes.
std::chrono::steady_clock::time_point about_now();

// One call as every step of it sees it.
struct call {
  header head;
  std::vector<std::int64_t> numbers = {};                           // the sizes given, as other ranks compare them
  std::string given = {};                                           // as errors show those of several tensors
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;  // nothing: the group's
  std::chrono::steady_clock::time_point started = about_now();
  bool checked = false;  // ranks exchange headers, though sizes are given and data may travel without
  bool failed = false;   // set before it ends

  bool has_headers() const { return !head.sized || checked; }
};

class bundle;

class engine {
 public:
  virtual ~engine() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;

  // A call begins: it gets its number, which every rank counts alike, and its turn. Every call that began must end.
  void begin(call& now) {
    number(now);
    take_turn(now);
  }
  // The same in two steps, for calls that are started and run later. The group's first number may wait for the other
  // ranks, no other does. Where take_turn throws, the call has ended.
  virtual void number(call& now) = 0;
  virtual void take_turn(call&) {}
  virtual void end(const call&) noexcept {}
  // The next so many numbers are of calls that other ranks may make without this one. Waits for nobody.
  virtual void skip(std::uint64_t /*calls*/) noexcept {}
  // Whether its group was destroyed: what is under way will never be done.
  virtual bool is_gone() { return false; }
  // What carries started calls on.
  std::shared_ptr<progress> line();
  // Whether calls with sizes given exchange headers too (SHEAF_CHECK=1, or where it costs nothing).
  virtual bool checks_sized_calls() const = 0;
  // The same of a call that is carried as a device's.
  virtual bool checks_device_call(const header&) const { return false; }
  virtual carriage carries(device_type device) const {
    return device == device_type::cpu ? carriage::host : carriage::none;
  }
  // Whether started calls of such tensors can be made apart from the program's own, by another thread.
  virtual bool carries_apart(device_type) const { return true; }
  // This rank gave up a call that the others may carry on with: whatever it sends by the same way from now on would be
  // taken for that call's. And since which one, empty if none: "all_gather #17".
  virtual void lose_step(const call&) noexcept {}
  virtual std::string out_of_step_since() const { return {}; }
  // Data up to here rides along with its header. The same on every rank.
  virtual std::size_t inline_bytes() const { return sheaf::inline_bytes; }

  // Learn: what every rank says of this call, with the sizes given and then `data`. It stays until the call ends.
  virtual const heard& exchange(const call& now, const payload& data) = 0;
  // Says why this rank refuses, and waits for nobody: what was posted stays posted. Returns what the others say where
  // they are in the same call at the same moment, and nothing otherwise. Throws left_behind where one is past it.
  virtual std::vector<std::optional<frame>> refuse(const call& now) = 0;

  // Leaves word for ranks that will wait in vain: "failed in …".
  virtual void report(const call& now, const std::string& said) = 0;

  // Memory of the engine's own for the result of this call, where it has better than fresh memory; else none.
  virtual memory take_result(const call&, const layout&) { return {}; }
  // The same for data that came along with headers.
  virtual memory take_private(std::size_t) { return {}; }

  // Move: every rank's block into its place. `own` is the own block, contiguous.
  virtual void all_gather(const call& now, const layout& at, memory own, memory result) = 0;
  // The own rows of the sum over ranks of `whole`.
  virtual void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) = 0;
  // The same for all tensors of a coalesced call. Results are taken once: for wholes(), and for packed(), which is what
  // `own` holds.
  virtual void all_gather_coalesced(const call& now, const bundle& all) = 0;
  virtual void reduce_scatter_coalesced(const call& now, const bundle& all, memory own) = 0;

 private:
  std::mutex line_mutex_;
  std::shared_ptr<progress> line_;
};

}  // namespace sheaf
