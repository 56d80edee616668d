// SPDX-License-Identifier: MIT
#include "c10d/collectives.hpp"

#include <algorithm>
#include <numeric>

#include "c10d/steps.hpp"
#include "core/way.hpp"

namespace sheaf::c10d_engine {
namespace {

// From here on an owner of much more than the others has its sums shared out.
constexpr std::int64_t large_block = std::int64_t{1} << 20;

// What the busiest rank receives if every owner sums its own rows, against even shares that are then handed on. The
// second round must be worth it.
bool is_shared_out(const layout& at) {
  const auto world = static_cast<std::int64_t>(at.sizes.size());
  const auto largest = std::ranges::max(at.sizes);
  const auto by_owners = (world - 1) * largest;
  const auto by_shares = at.bytes() / world * (world - 2) + largest;
  return largest >= large_block && by_owners / 3 * 2 > by_shares;
}

// How many bytes of the blocks, one after another, each rank sums: even shares of whole vectors.
splits even_shares(std::int64_t bytes, std::int64_t world) {
  const auto vectors = whole_vectors(bytes) / vector_bytes;
  splits shares;
  for (std::int64_t rank = 0; rank < world; ++rank) {
    const auto first = vectors * rank / world * vector_bytes;
    shares.push_back(std::min(vectors * (rank + 1) / world * vector_bytes, bytes) - first);
  }
  return shares;
}

// Of the run of bytes that is parts[which]: how much of it lies in each of `others`, both being cuts of the same bytes.
splits overlaps(const splits& parts, std::size_t which, const splits& others) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < which; ++i) first += parts[i];
  const auto end = first + parts[which];
  splits common;
  std::int64_t begin = 0;
  for (const auto bytes : others) {
    common.push_back(std::max<std::int64_t>(0, std::min(end, begin + bytes) - std::max(first, begin)));
    begin += bytes;
  }
  return common;
}

std::vector<std::byte*> one_after_another(std::byte* first, const splits& bytes) {
  std::vector<std::byte*> blocks;
  for (const auto count : bytes) {
    blocks.push_back(first);
    first += count;
  }
  return blocks;
}

// The first `bytes` of every slot.
std::vector<at::Tensor> cut(const at::Tensor& whole, const splits& slots, const splits& bytes) {
  auto parts = whole.split_with_sizes(slots);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].narrow(0, 0, bytes[i]);
  return parts;
}

// Where tensor `which` begins in each rank's packed block.
std::vector<std::byte*> places_of(const bundle& all, std::size_t which, const std::vector<std::byte*>& blocks) {
  auto places = blocks;
  for (std::size_t rank = 0; rank < blocks.size(); ++rank) places[rank] += all.place_of(static_cast<int>(rank), which);
  return places;
}

}  // namespace

void collectives::all_gather(const call& now, const bundle& all) {
  const auto& at = all.packed();
  const auto& only = all.parts()[0];
  if (at.bytes() == 0) return;
  steps run(by_, now, only.whole);
  const auto how = way_of(at);
  const bool alone = all.parts().size() == 1;
  // Along dim 0 the blocks, one after another, are the result; else it is placed from where they come to lie.
  const bool in_place = alone && only.at.outer == 1 && how != way::staged;
  auto slots = at.sizes;
  if (!in_place && how != way::even) std::ranges::transform(slots, slots.begin(), whole_vectors);
  const auto blocks =
      in_place ? as_tensor(only.whole) : run.scratch(std::accumulate(slots.begin(), slots.end(), std::int64_t{0}));
  std::vector<at::Tensor> parts;
  if (!alone || how != way::even) parts = cut(blocks, slots, at.sizes);

  auto block = as_tensor(only.own);
  if (!alone || (in_place && how != way::even)) {
    block = parts[rank_];
    for (std::size_t i = 0; i < all.parts().size(); ++i) {
      const auto own = as_tensor(all.parts()[i].own);
      block.narrow(0, static_cast<std::int64_t>(all.own_place(i)), own.numel()).copy_(own);
    }
  }
  if (how == way::even) {
    run.gather_even(block, blocks);
  } else if (how == way::direct) {
    run.gather_directly(block, parts);
  } else {
    run.gather_grouped(block, parts);
  }
  if (in_place) return;
  auto from = one_after_another(bytes_of(blocks), slots);
  from[rank_] = bytes_of(block);
  for (std::size_t i = 0; i < all.parts().size(); ++i) {
    const auto& one = all.parts()[i];
    if (one.whole.size > 0) run.local().place(one.at, places_of(all, i, from), one.whole.data);
  }
}

void collectives::reduce_scatter(const call& now, const bundle& all) {
  const auto& at = all.packed();
  const auto& only = all.parts()[0];
  if (at.bytes() == 0) return;
  steps run(by_, now, only.whole);
  const auto world = static_cast<int>(at.sizes.size());
  const bool alone = all.parts().size() == 1;
  const bool in_place = alone && only.at.outer == 1;
  auto blocks = in_place ? as_tensor(only.whole) : run.scratch(at.bytes());
  const auto to = one_after_another(bytes_of(blocks), at.sizes);
  for (std::size_t i = 0; i < all.parts().size() && !in_place; ++i) {
    const auto& one = all.parts()[i];
    if (one.whole.size > 0) run.local().pack(one.at, one.whole.data, places_of(all, i, to));
  }

  const bool shared_out = alone && is_shared_out(at);
  const auto parts = shared_out ? even_shares(at.bytes(), world) : at.sizes;
  const auto mine = parts[rank_];
  const auto heard = run.scratch(world * mine);
  run.all_to_all(blocks, parts, heard, splits(world, mine));
  blocks.reset();
  const auto sum = [&](const part& of, std::size_t first, const memory& out) {
    if (out.size > 0) run.local().sum(of.type, of.op, world, bytes_of(heard) + first, mine, out.data, out.size);
  };
  if (shared_out) {
    const auto share = run.scratch(mine);
    sum(only, 0, {bytes_of(share), static_cast<std::size_t>(mine)});
    run.all_to_all(share, overlaps(parts, rank_, at.sizes), as_tensor(only.own), overlaps(at.sizes, rank_, parts));
    return;
  }
  for (std::size_t i = 0; i < all.parts().size(); ++i) sum(all.parts()[i], all.own_place(i), all.parts()[i].own);
}

}  // namespace sheaf::c10d_engine
