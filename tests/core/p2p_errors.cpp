// SPDX-License-Identifier: MIT
// Calls that fail on the point-to-point engine: late ranks, refusals, disagreements. Each leaves a group that works.
#include <gtest/gtest.h>

#include <set>
#include <sheaf/error.hpp>

#include "core/bundle.hpp"
#include "core/crew.hpp"
#include "core/skips.hpp"
#include "core/verdict.hpp"
#include "p2p/tags.hpp"

namespace sheaf::test {
namespace {

// Bytes along dim 0, as one tensor or as the first of two.
void gather(p2p::engine& me, const call& now, const layout& at) {
  if (now.head.op == operation::all_gather) {
    return me.all_gather(now, at, allocate(at.block_bytes(me.rank())), allocate(at.bytes()));
  }
  const part one{at, dtype::uint8, reduction::sum, allocate(at.bytes()), allocate(at.block_bytes(me.rank()))};
  me.all_gather_coalesced(now, bundle(me.rank(), {one, one}));
}

void scatter(p2p::engine& me, const call& now, const layout& at) {
  if (now.head.op == operation::reduce_scatter) {
    return me.reduce_scatter(now, at, reduction::sum, allocate(at.bytes()), allocate(at.block_bytes(me.rank())));
  }
  const part one{at, dtype::uint8, reduction::sum, allocate(at.bytes()), {}};
  const bundle all(me.rank(), {one, one});
  me.reduce_scatter_coalesced(now, all, allocate(all.packed().sizes[me.rank()]));
}

TEST(exchange, settings_that_differ_are_an_error_on_every_rank) {
  crew ranks({settings{}, settings{.check = true}, settings{}});
  const auto errors = ranks.run([](p2p::engine& me) { me.exchange(next_call(me, operation::all_gather), {}); });
  for (const auto& text : errors) {
    EXPECT_EQ(text, errors[0]);
    EXPECT_NE(text.find("ranks disagree on settings: SHEAF_CHECK=0"), std::string::npos) << text;
    EXPECT_NE(text.find("SHEAF_MESSAGE_BYTES=2147483648 on rank 1"), std::string::npos) << text;
  }
}

// Ranks 0 and 2 give up on rank 1, which then finds all it needs; the next call has them all.
TEST(exchange, a_late_rank_is_named_and_the_next_call_works) {
  crew ranks(3, 1 << 20);
  const auto exchange = [](p2p::engine& me) {
    auto now = next_call(me, operation::all_gather);
    now.timeout = 150ms;
    EXPECT_EQ(me.exchange(now, {}).verdict(), std::nullopt);
  };
  EXPECT_EQ(ranks.run(exchange), std::vector<std::string>(3));  // they have met
  const auto errors = ranks.run([&](p2p::engine& me) {
    if (me.rank() != 1) exchange(me);
  });
  for (const int rank : {0, 2}) {
    EXPECT_NE(errors[rank].find("all_gather #2: no answer from rank 1 within 0.15 s; rank 1 never came"),
              std::string::npos)
        << errors[rank];
  }
  const auto late = ranks.run([&](p2p::engine& me) {
    if (me.rank() == 1) exchange(me);
  });
  EXPECT_EQ(late, std::vector<std::string>(3));
  EXPECT_EQ(ranks.run(exchange), std::vector<std::string>(3));
}

// What a rank said of a call that it refused is not lost in its next one, which is the group's first to be heard.
void expect_refusal_is_heard(operation op) {
  crew ranks(2, 1 << 20);
  std::string said;
  const auto errors = ranks.run([&](p2p::engine& me) {
    {
      auto now = next_call(me, op);
      now.head.sized = true;
      now.timeout = 20s;
      if (me.rank() == 0) {
        try {
          gather(me, now, make_layout(extents{2}, 0, extents{2, 2}, 1));
        } catch (const value_error& error) {
          said = error.what();
        }
      } else {
        now.head.refusal = "it is tired";
        me.refuse(now);
      }
    }
    me.exchange(next_call(me, operation::all_gather), {});
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(said, std::string(name(op)) + " #1: rank 1 refuses: it is tired");
}

TEST(refuse, is_heard_by_ranks_whose_data_is_on_its_way) {
  expect_refusal_is_heard(operation::all_gather);
  expect_refusal_is_heard(operation::all_gather_coalesced);
}

// Ranks 0 and 2 are in a backward whose data comes without headers; rank 1 has left it out and is in the next call.
void expect_header_is_heard(operation op) {
  crew ranks(3, 1 << 20);
  const auto errors = ranks.run([&](p2p::engine& me) {
    auto now = next_call(me, me.rank() == 1 ? operation::gather_sizes : op);
    now.timeout = 20s;
    if (me.rank() == 1) {
      throw value_error(*me.exchange(now, {}).verdict());
    }
    now.head.sized = true;
    now.head.origin = 12;
    scatter(me, now, make_layout(extents{6}, 0, extents{2, 2, 2}, 1));
  });
  const std::string what(name(op));
  for (const auto& error : errors) {
    EXPECT_EQ(
        error,
        what + " #1: ranks disagree on op: " + what +
            " (differentiates #12) on ranks 0, 2; "
            "gather_sizes on rank 1; rank 1 has left out the backward of #12: every rank's loss must use that result, "
            "if only by y[:0].sum()");
  }
}

TEST(exchange, a_header_among_data_is_a_disagreement) {
  expect_header_is_heard(operation::reduce_scatter);
  expect_header_is_heard(operation::reduce_scatter_coalesced);
}

// Rank 1 has left out the backward of #12 by calls of which it sends no header, and is in the one after these. Rank 0
// is told of how many it missed beside its own, and is in step without them.
TEST(exchange, a_rank_that_is_past_it_is_told_of_with_the_own_call) {
  crew ranks(2, 1 << 20);
  std::string said;
  std::uint64_t missed = 0;
  const auto errors = ranks.run([&](p2p::engine& me) {
    {
      auto now = next_call(me, operation::reduce_scatter);
      now.head.origin = 12;
      try {
        if (me.rank() == 0) me.exchange(now, {});
      } catch (const left_behind& error) {
        said = error.what();
        missed = error.missed;
      }
    }
    me.skip(2);
    me.exchange(next_call(me, operation::all_gather), {});
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(said.substr(0, said.find(" of group")),
            "reduce_scatter #1: rank 1 is past it, in all_gather #4 (uint8 [4], dim 0). "
            "This rank is in reduce_scatter #1 (uint8 [4], dim 0; differentiates #12)");
  EXPECT_EQ(missed, 2u);
}

TEST(exchange, a_rank_that_left_is_lost_at_once) {
  crew ranks(2, 1 << 20);
  ranks.mates().leave(1, "it is done");
  try {
    ranks.engine(0).exchange(next_call(ranks.engine(0), operation::all_gather), {});
    FAIL() << "nothing was thrown";
  } catch (const rank_error& error) {
    EXPECT_NE(std::string(error.what()).find("lost rank 1"), std::string::npos) << error.what();
  }
}

// The one that refuses waits for nobody; the others read its reason in its header.
TEST(refuse, is_heard_by_all_and_the_group_goes_on) {
  crew ranks(3, 1 << 20);
  for (int chosen = 0; chosen < 3; ++chosen) {
    std::vector<std::string> verdicts(3);
    const auto errors = ranks.run([&](p2p::engine& me) {
      auto now = next_call(me, operation::all_gather);
      if (me.rank() == chosen) {
        now.head.tensors = {};
        now.head.refusal = "it is tired";
        const auto frames = me.refuse(now);
        if (!frames.empty()) verdicts[chosen] = *verdict(frames);
      } else {
        verdicts[me.rank()] = me.exchange(now, {}).verdict().value_or("none");
      }
    });
    EXPECT_EQ(errors, std::vector<std::string>(3));
    const auto name = title({.op = operation::all_gather, .sequence = 1ull + 2 * chosen});
    const auto want = name + ": rank " + std::to_string(chosen) + " refuses: it is tired";
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(verdicts[rank] == want || (rank == chosen && verdicts[rank].empty())) << verdicts[rank];
    }
    const auto works = ranks.run([](p2p::engine& me) {
      const auto now = next_call(me, operation::gather_sizes);
      EXPECT_EQ(me.exchange(now, {}).verdict(), std::nullopt);
    });
    EXPECT_EQ(works, std::vector<std::string>(3));
  }
}

// With sizes given, too, where headers are exchanged all the same: all refuse, and raise one text.
TEST(refuse, is_heard_by_others_who_refuse) {
  crew ranks(2, 1 << 20);
  ranks.run([](p2p::engine& me) { me.exchange(next_call(me, operation::all_gather), {}); });  // they have met
  std::vector<std::string> said(2);
  const auto errors = ranks.run([&](p2p::engine& me) {
    auto now = next_call(me, operation::reduce_scatter);
    now.head.sized = now.checked = true;
    now.head.refusal = me.rank() == 0 ? "it is tired" : "it is late";
    const auto frames = me.refuse(now);
    if (!frames.empty()) said[me.rank()] = *verdict(frames);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  const std::string text = "reduce_scatter #2: rank 0 refuses: it is tired; rank 1 refuses: it is late";
  EXPECT_EQ(said, std::vector<std::string>(2, text));
}

TEST(refuse, nobody_there_is_no_reason_to_wait) {
  crew ranks(2, 1 << 20);
  auto now = next_call(ranks.engine(0), operation::all_gather);
  now.head.refusal = "it is tired";
  EXPECT_TRUE(ranks.engine(0).refuse(now).empty());
  const auto later = next_call(ranks.engine(1), operation::all_gather);
  const auto frames = ranks.engine(1).exchange(later, {}).frames();
  EXPECT_EQ(frames[0]->head.refusal, "it is tired");
}

// Rank 0 gives up on rank 1, but what it posted is the engine's until rank 1 has it: nothing of it is withdrawn, no
// memory goes before that, and the next call does not see it.
TEST(abandoned_calls, stay_posted_and_disturb_nobody) {
  for (const std::int64_t message_bytes : {5, 1 << 20}) {
    crew ranks(2, message_bytes);
    const auto at = make_layout(extents{2, 1, 3}, 1, extents{4, 6}, 1);
    const auto whole = random_bytes(at.bytes(), 7);
    std::vector<std::weak_ptr<const void>> lent;
    const auto gather = [&](p2p::engine& me) {
      auto now = next_call(me, operation::all_gather);
      now.timeout = 150ms;
      const auto own = copy_of(block_of(at, me.rank(), whole));
      const auto result = allocate(at.bytes());
      if (me.rank() == 0) lent.push_back(own.owner);
      me.all_gather(now, at, own, result);
      EXPECT_EQ(content(result), whole);
    };
    const auto run_alone = [&](int rank) {
      return ranks.run([&](p2p::engine& me) {
        if (me.rank() == rank) gather(me);
      })[rank];
    };
    ranks.run([](p2p::engine& me) { me.exchange(next_call(me, operation::gather_sizes), {}); });  // they have met
    EXPECT_NE(run_alone(0).find("no answer from rank 1"), std::string::npos);
    EXPECT_FALSE(lent.at(0).expired()) << "rank 1 has yet to read it";
    EXPECT_EQ(run_alone(1), "");
    EXPECT_TRUE(lent.at(0).expired()) << "rank 1 has read it";
    EXPECT_EQ(ranks.run(gather), std::vector<std::string>(2));
  }
}

// Calls that differ in what ranks must agree on have tags that never meet: both sides end at the deadline.
TEST(tags, calls_that_disagree_never_match) {
  const auto sizes = [](int rank, bool odd) { return odd && rank == 0 ? extents{2, 3} : extents{2, 2}; };
  for (const auto* what : {"op", "mode", "dtype", "shape", "sizes", "origin"}) {
    const std::string odd = what;
    crew ranks(2, 1 << 20);
    const auto errors = ranks.run([&](p2p::engine& me) {
      auto now = next_call(me, operation::all_gather, dtype::int8);
      now.timeout = 150ms;
      if (me.rank() == 0) {
        if (odd == "op") now.head.op = operation::reduce_scatter;
        if (odd == "mode") now.head.mode = gradient::mean;
        if (odd == "dtype") now.head.tensors[0].type = dtype::uint8;
        if (odd == "shape") now.head.tensors[0].ndim = 2;
        if (odd == "origin") now.head.origin = 5;
      }
      const auto at = make_layout(extents{2}, 0, sizes(me.rank(), odd == "sizes"), 1);
      me.all_gather(now, at, allocate(at.block_bytes(me.rank())), allocate(at.bytes()));
    });
    for (const auto& text : errors)
      EXPECT_NE(text.find("no answer from rank"), std::string::npos) << odd << ": " << text;
  }
}

// What a call leaves behind waits for that very call: no later one of another op takes it for its own.
TEST(tags, no_number_of_one_op_is_one_of_another) {
  const auto at = make_layout(extents{2}, 0, extents{2, 2}, 1);
  std::set<std::uint32_t> seen;
  for (std::uint64_t number = 1; number <= 64; ++number) {
    for (const auto op : {operation::all_gather, operation::reduce_scatter, operation::all_gather_coalesced,
                          operation::reduce_scatter_coalesced}) {
      call now;
      now.head.sequence = number;
      now.head.op = op;
      EXPECT_TRUE(seen.insert(p2p::data_tags(now, at)(0)).second) << "#" << number << " of op " << int(op);
    }
  }
}

}  // namespace
}  // namespace sheaf::test
