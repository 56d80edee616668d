// SPDX-License-Identifier: MIT
// The engine over shared memory: ranks are processes of one host. Each collective is one file.
#pragma once

#include <functional>

#include "core/engine.hpp"
#include "core/notices.hpp"
#include "core/patience.hpp"
#include "core/turns.hpp"
#include "core/warm.hpp"
#include "shm/arena.hpp"
#include "shm/bell.hpp"
#include "shm/cores.hpp"
#include "shm/life.hpp"
#include "shm/pool.hpp"

namespace sheaf::shm {

class engine final : public sheaf::engine {
 public:
  // What this rank needs of a group; `lives` is empty where ranks are threads.
  struct membership {
    std::shared_ptr<arena> place;
    int rank = 0;
    std::shared_ptr<notices> told;
    std::vector<std::optional<life>> lives;  // by rank, the own one empty
    std::size_t pool_bytes = std::size_t{1} << 30;
    std::int64_t worth_sharing = 0;  // from so large a block on, sums are shared out; 0: by the number of ranks
  };
  explicit engine(membership of);

  // Whether all ranks sum for an owner that has much more than the others.
  bool is_shared_out(const layout& at) const;

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  void number(call& now) override { turns_.number(now); }
  void take_turn(call& now) override;
  void end(const call& now) noexcept override;
  void skip(std::uint64_t calls) noexcept override { turns_.skip(calls); }
  bool checks_sized_calls() const override { return true; }  // the header rides along in any case
  std::size_t inline_bytes() const override { return inline_capacity; }

  const heard& exchange(const call& now, const payload& data) override;
  std::vector<std::optional<frame>> refuse(const call& now) override;
  void report(const call& now, const std::string& said) override;
  memory take_result(const call& now, const layout& at) override;
  memory take_private(std::size_t bytes) override;
  void all_gather(const call& now, const layout& at, memory own, memory result) override;
  void reduce_scatter(const call& now, const layout& at, reduction op, memory whole, memory own) override;
  void all_gather_coalesced(const call& now, const bundle& all) override;
  void reduce_scatter_coalesced(const call& now, const bundle& all, memory own) override;

  // "shm (all 4 ranks are processes of one host; 2 results and 128 MiB of 6000 MiB in shared memory)"
  std::string describe() const;

 private:
  friend class scatter;

  board& of(int peer) const { return place_->of(peer); }
  // Publishes one of this rank's words.
  void publish(std::atomic<std::uint64_t> board::* word, std::uint64_t value);
  // How often to look for something of a peer's before giving way to others.
  int tries_for(int peer) const;
  // Waits until ready(peer). Throws rank_error at the deadline, or when any rank's process is gone.
  template <class Ready>
  void await(patience& waiting, int peer, Ready&& ready);
  // The same where it was not there at once.
  template <class Ready>
  void await_longer(patience& waiting, int peer, Ready&& ready);
  // Throws peer_gone when the process of a rank that is still in this call has ended.
  void throw_if_dead(std::uint64_t sequence) const;
  // Where there are cores enough, yet `peer` was last seen on this very one: the kernel may leave both there for long,
  // each waiting for the other's time slice. The higher rank goes.
  void leave_core_of(int peer);
  // Where there are not: ranks that wait give way, and so never leave a core idle, which is what would have the kernel
  // take a rank from a crowded one. So they see to it themselves before they move much.
  void spread_out();
  patience patience_for(const call& now);
  // The last call that a rank was seen in, and whether its process is stopped.
  std::optional<note> last_seen(int peer) const;
  // `peer` left this call: because of a dead rank, or by itself.
  [[noreturn]] void throw_deserted(patience& waiting, int peer) const;
  std::vector<int> missing(const std::function<bool(int)>& is_there) const;

  // Whether the slot for this call is free: no peer can still be reading the frame before.
  bool may_post(int peer, std::uint64_t sequence) const;
  bool has_posted(int peer, std::uint64_t sequence) const;
  bool has_left(int peer, std::uint64_t sequence) const;
  void post(const call& now, const payload& data);
  std::optional<frame> frame_of(int peer, std::uint64_t sequence) const;
  // What it says where that is what this rank says.
  std::optional<heard::answer> answer_of(int peer, std::uint64_t sequence) const;
  std::vector<std::optional<frame>> frames_of(std::uint64_t sequence) const;
  // Rank 0: has the habits learn how long it takes to read what was written by that way.
  void time_reading(int of, readers way, const std::byte* from, std::size_t bytes);
  // By what came along with a header, of which a part is wanted; `ways` are those it was written by, none if it was
  // made in its place.
  void learn_from_frame(std::span<const std::byte> data, payload::part wanted, std::optional<habits::ways> ways);
  // What all ranks posted, into `heard_`.
  void hear(const call& now, const payload& mine);

  // Waits until `peer` has reached step `step` of this call; throws when it left the call before.
  void await_step(patience& waiting, int peer, std::uint64_t step, std::atomic<std::uint64_t> board::* word);
  void await_step_of_all(patience& waiting, std::uint64_t step, std::atomic<std::uint64_t> board::* word);
  // How so many bytes of this call are written for others; the same on every rank.
  readers readers_of(const header& head, std::int64_t bytes) const;
  // What all ranks' frames of the call say of the segments.
  census census_of(std::uint64_t sequence) const;
  // The segment for this call, decided once, after the exchange.
  std::optional<int> segment_for(const call& now, std::size_t bytes);
  // Part of it as the result: it is released with that, not with the call.
  memory lease(int segment, std::size_t first, std::size_t bytes);

  // A gather into a segment, and one in steps through the staging buffers where there is none.
  void gather_in_segment(patience& waiting, const layout& at, int segment, const memory& own, const memory& result);
  void gather_in_steps(patience& waiting, const layout& at, const memory& own, const memory& result);
  void learn_from_result(const layout& at, readers way, const std::byte* result);
  // The same of several tensors.
  void gather_in_segment(patience& waiting, const bundle& all, int segment);
  void gather_packed_in_steps(patience& waiting, const bundle& all);

  const std::shared_ptr<arena> place_;
  const int rank_;
  const int world_;
  const std::shared_ptr<notices> told_;
  const std::vector<std::optional<life>> lives_;
  const std::shared_ptr<pool> pool_;
  const std::shared_ptr<warm_memory> warm_;
  const std::int64_t worth_sharing_;
  habits habits_;
  heard heard_;
  habits::ways heard_ways_;          // rank 0's of the last call
  std::vector<std::uint64_t> seen_;  // by rank: the last call whose frame was there
  seats cores_;                      // as of that call

  turns turns_{[this](std::uint64_t last) { publish(&board::left, last); }};

  // Of the call whose turn it is.
  struct {
    bool decided = false;
    std::optional<int> segment;
    bool leased = false;
  } now_;
};

template <class Ready>
void engine::await(patience& waiting, int peer, Ready&& ready) {
  const auto is_there = [&] { return ready(peer); };
  if (!is_there_at_once(is_there, tries_for(peer))) await_longer(waiting, peer, ready);
}

template <class Ready>
void engine::await_longer(patience& waiting, int peer, Ready&& ready) {
  const auto is_there = [&] { return ready(peer); };
  leave_core_of(peer);
  if (is_soon(is_there)) return;
  waiting.wait(
      peer,
      [&](clock::time_point until) {
        if (sleep_until(of(peer), is_there, until)) return true;
        throw_if_dead(waiting.now().head.sequence);
        return false;
      },
      [&] { return missing(ready); });
}

}  // namespace sheaf::shm
