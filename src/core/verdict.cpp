// SPDX-License-Identifier: MIT
#include "core/verdict.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/text.hpp"

namespace sheaf {
namespace {

using finding = std::optional<std::string>;
using heads = std::span<const header* const>;

std::string plural(std::span<const int> ranks, std::string_view one, std::string_view many) {
  return rank_list(ranks) + " " + std::string(ranks.size() == 1 ? one : many);
}

template <class Condition>
std::vector<int> ranks_where(std::size_t world, Condition&& holds) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < world; ++r) {
    if (holds(r)) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

// Equal values together with their ranks, in the order of their first rank.
std::vector<std::pair<std::string, std::vector<int>>> grouped(std::span<const std::string> values) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t r = 0; r < values.size(); ++r) {
    auto found = std::ranges::find(groups, values[r], [](const auto& group) { return group.first; });
    if (found == groups.end()) found = groups.insert(found, {values[r], {}});
    found->second.push_back(static_cast<int>(r));
  }
  return groups;
}

finding find_strangers(std::span<const std::optional<frame>> frames) {
  const auto strangers = ranks_where(frames.size(), [&](std::size_t r) { return !frames[r]; });
  if (strangers.empty()) return {};
  return plural(strangers, "speaks another protocol version or is", "speak another protocol version or are") +
         " not Sheaf";
}

finding find_refusals(heads all) {
  std::vector<std::string> refusals;
  for (const auto* head : all) refusals.push_back(head->refusal);
  std::string text;
  for (const auto& [refusal, ranks] : grouped(refusals)) {
    if (refusal.empty()) continue;
    text += (text.empty() ? "" : "; ") + plural(ranks, "refuses: ", "refuse: ") + refusal;
  }
  return text.empty() ? finding{} : text;
}

// What a rank does: "reduce_scatter (differentiates #12)".
std::string shown_deed(const header& head) {
  if (is_sizes_first(head)) return shown_op(head) + " (sizes first)";
  return head.origin == 0 ? shown_op(head) : shown_op(head) + " (differentiates #" + std::to_string(head.origin) + ")";
}

// Compares `value` over the ranks; only a disagreement is put into words, by `show`.
template <class Value, class Show>
finding disagreement(heads all, const std::string& what, Value&& value, Show&& show) {
  const auto differs = [&](const header* head) { return value(*head) != value(*all.front()); };
  if (std::ranges::none_of(all, differs)) return {};
  std::vector<std::string> values;
  for (const auto* head : all) values.emplace_back(show(*head));
  return "ranks disagree on " + what + ": " + group_by_value(values);
}

template <class Value>
finding disagreement_on_number(heads all, const std::string& what, Value&& value) {
  return disagreement(all, what, value, [&](const header& head) { return std::to_string(value(head)); });
}

template <class Value>
finding disagreement_on_name(heads all, const std::string& what, Value&& value) {
  return disagreement(all, what, value, [&](const header& head) { return name(value(head)); });
}

// Ranks in another call while others are in a backward have left out theirs.
std::string left_out(heads all) {
  const auto without = ranks_where(all.size(), [&](std::size_t r) { return all[r]->origin == 0; });
  const auto first = std::ranges::find_if(all, [](const header* head) { return head->origin != 0; });
  if (without.empty() || first == all.end()) return "";
  return "; " + plural(without, "has", "have") + " left out the backward of #" + std::to_string((*first)->origin) +
         ": every rank's loss must use that result, if only by y[:0].sum()";
}

finding compare_ops(heads all) {
  if (auto found = disagreement(all, "op", [](auto& head) { return head.op; }, shown_deed)) {
    return *found + left_out(all);
  }
  const auto origin = [](const header& head) { return head.origin; };
  const auto shown = [](const header& head) {
    return head.origin == 0 ? std::string("none") : "#" + std::to_string(head.origin);
  };
  if (auto found = disagreement(all, "the call it differentiates", origin, shown)) return *found + left_out(all);
  return disagreement_on_number(all, "how many calls follow in the same step", [](auto& head) { return head.follows; });
}

std::string of_tensor(const header& head, std::size_t index) {
  return head.tensors.size() == 1 ? std::string() : " of tensor " + std::to_string(index);
}

const char* given_or_learned(bool sized) { return sized ? "given" : "to be learned"; }

// What coalesced calls say of each tensor.
finding compare_how(heads all, std::size_t index) {
  const auto& first = *all.front();
  const auto of = of_tensor(first, index);
  const auto mode = [=](const header& head) { return head.tensors[index].mode; };
  if (auto found = disagreement_on_name(all, (is_reduction(first.op) ? "reduction" : "gradient mode") + of, mode)) {
    return found;
  }
  const auto sized = [=](const header& head) { return head.tensors[index].sized; };
  return disagreement(all, "sizes" + of, sized, [&](const header& head) { return given_or_learned(sized(head)); });
}

finding compare_tensor(heads all, std::size_t index) {
  const auto& first = *all.front();
  const auto of = of_tensor(first, index);
  const auto tensor = [=](const header& head) -> const record& { return head.tensors[index]; };

  if (auto found = disagreement_on_name(all, "device" + of, [&](auto& head) { return tensor(head).device; })) {
    return found;
  }
  if (auto found = disagreement_on_number(all, "ndim" + of, [&](auto& head) { return tensor(head).ndim; })) {
    return found;
  }
  if (auto found = disagreement_on_number(all, "dim" + of, [&](auto& head) { return tensor(head).dim; })) return found;
  if (auto found = disagreement_on_name(all, "dtype" + of, [&](auto& head) { return tensor(head).type; })) {
    return found;
  }
  // Blocks differ along `dim` by right; what reduce_scatter sums may differ nowhere.
  const auto& shown = tensor(first);
  for (std::size_t d = 0; d < shown.dims().size(); ++d) {
    if (static_cast<int>(d) == shown.dim && !is_reduction(first.op)) continue;
    if (auto found = disagreement_on_number(all, "the size of dim " + std::to_string(d) + of,
                                            [&](auto& head) { return tensor(head).shape[d]; })) {
      return found;
    }
  }
  return compare_how(all, index);
}

finding compare_tensors(heads all) {
  if (auto found =
          disagreement_on_number(all, "the number of tensors", [](auto& head) { return head.tensors.size(); })) {
    return found;
  }
  for (std::size_t index = 0; index < all.front()->tensors.size(); ++index) {
    if (auto found = compare_tensor(all, index)) return found;
  }
  return {};
}

finding compare_modes(heads all) {
  const auto* what = is_reduction(all.front()->op) ? "reduction" : "gradient mode";
  if (auto found = disagreement_on_name(all, what, [](auto& head) { return head.mode; })) return found;
  const auto sized = [](const header& head) { return head.sized; };
  return disagreement(all, "sizes", sized, [](const header& head) { return given_or_learned(head.sized); });
}

std::vector<std::int64_t> given_sizes(const frame& said, std::size_t first, std::size_t world) {
  const auto bytes = said.payload.subspan(std::min(8 * first, said.payload.size()));
  std::vector<std::int64_t> sizes(std::min(world, bytes.size() / 8));
  for (std::size_t i = 0; i < 8 * sizes.size(); ++i) {
    const auto bits = std::to_integer<std::uint64_t>(bytes[i]) << (8 * (i % 8));
    sizes[i / 8] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sizes[i / 8]) | bits);
  }
  return sizes;
}

// Of tensor `index`, whose sizes are the payload's numbers from `first` on.
finding compare_sizes(std::span<const std::optional<frame>> frames, heads all, std::size_t index, std::size_t first) {
  const auto of = of_tensor(*all.front(), index);
  const auto world = frames.size();
  const auto sizes = given_sizes(*frames.front(), first, world);
  const auto same = [&](const auto& said) { return given_sizes(*said, first, world) == sizes; };
  if (!std::ranges::all_of(frames, same)) {
    std::vector<std::string> values;
    for (const auto& said : frames) values.push_back(list(given_sizes(*said, first, world)));
    return "ranks disagree on sizes" + of + ": " + group_by_value(values);
  }
  if (sizes.size() != world) {
    return "sizes" + of + ": expected one size a rank (" + std::to_string(world) + "), got " + list(sizes);
  }
  if (!is_gather(all.front()->op)) return {};
  for (std::size_t r = 0; r < all.size(); ++r) {
    const auto& tensor = all[r]->tensors[index];
    if (!tensor.has_rows() || tensor.rows() == sizes[r]) continue;
    return "sizes" + of + ": rank " + std::to_string(r) + " holds " + std::to_string(tensor.rows()) + " along dim " +
           std::to_string(tensor.dim) + ", but sizes " + list(sizes) + " say " + std::to_string(sizes[r]);
  }
  return {};
}

finding compare_sizes(std::span<const std::optional<frame>> frames, heads all) {
  const auto& head = *all.front();
  const auto world = frames.size();
  if (given_numbers(head, world) != given_tensors(head) * world) {
    const auto digest = [&](const frame& said) { return given_sizes(said, 0, digest_numbers); };
    const auto same = [&](const auto& said) { return digest(*said) == digest(*frames.front()); };
    if (std::ranges::all_of(frames, same)) return {};
    std::vector<std::string> values;
    for (const auto& said : frames) values.push_back("sizes with digest " + list(digest(*said)));
    return "ranks disagree on sizes: " + group_by_value(values);
  }
  std::size_t first = 0;
  for (std::size_t index = 0; index < head.tensors.size(); ++index) {
    if (!head.sized && !head.tensors[index].sized) continue;
    if (auto found = compare_sizes(frames, all, index, first)) return found;
    first += world;
  }
  return {};
}

// The backward of `sum` and `mean` needs every rank; one under no_grad would never come.
template <class Recording>
finding compare_recording(heads all, const std::string& of, Recording&& recording_of) {
  const auto ranks = [&](recording state) {
    return ranks_where(all.size(), [&](std::size_t r) { return recording_of(*all[r]) == state; });
  };
  const auto on = ranks(recording::on);
  const auto off = ranks(recording::off);
  if (on.empty() || off.empty()) return {};
  return plural(off, "is", "are") + " under no_grad while " + plural(on, "records", "record") + " gradients" + of +
         "; use grad=\"own\" or record everywhere (of a tensor from inference mode, pass x.clone())";
}

finding compare_recording(heads all) {
  const auto& head = *all.front();
  if (head.op == operation::all_gather && head.mode != gradient::own) {
    return compare_recording(all, "", [](const header& said) { return said.records_gradient; });
  }
  if (head.op != operation::all_gather_coalesced) return {};
  for (std::size_t index = 0; index < head.tensors.size(); ++index) {
    if (head.tensors[index].mode == gradient::own) continue;
    const auto recording_of = [=](const header& said) { return said.tensors[index].records_gradient; };
    if (auto found = compare_recording(all, of_tensor(head, index), recording_of)) return found;
  }
  return {};
}

finding compare(std::span<const std::optional<frame>> frames, heads all) {
  if (auto found = find_refusals(all)) return found;
  // The whole title, since a rank that is a call ahead is mostly in another op as well.
  if (auto found = disagreement(all, "sequence", [](auto& head) { return head.sequence; }, title)) return found;
  if (auto found = compare_ops(all)) return found;
  if (all.front()->op == operation::hello) return {};
  if (auto found = compare_tensors(all)) return found;
  if (auto found = compare_modes(all)) return found;
  if (auto found = compare_sizes(frames, all)) return found;
  return compare_recording(all);
}

}  // namespace

std::size_t given_tensors(const header& head) {
  if (head.sized) return head.tensors.size();
  return static_cast<std::size_t>(std::ranges::count_if(head.tensors, &record::sized));
}

std::size_t given_numbers(const header& head, std::size_t world) {
  const auto all = given_tensors(head) * world;
  return all > (head.tensors.size() > 1 ? max_given_numbers : max_given_numbers_of_one) ? digest_numbers : all;
}

// Two hashes (FNV-1a from different starts) of more sizes than a frame holds.
std::vector<std::int64_t> as_given(const header& head, std::size_t world, std::vector<std::int64_t> sizes) {
  if (given_numbers(head, world) == sizes.size()) return sizes;
  std::vector<std::int64_t> digest;
  for (std::uint64_t hash : {0xcbf29ce484222325u, 0x9e3779b97f4a7c15u}) {
    for (const auto size : sizes) hash = (hash ^ static_cast<std::uint64_t>(size)) * 0x100000001b3u ^ hash >> 29;
    digest.push_back(static_cast<std::int64_t>(hash));
  }
  return digest;
}

std::uint8_t given_up_by_all(std::span<const std::optional<frame>> frames) {
  const auto refuses = [](const std::optional<frame>& said) { return said && !said->head.refusal.empty(); };
  const bool any_refuses = std::ranges::any_of(frames, refuses);
  auto least = most_follow;
  for (const auto& said : frames) {
    if (said && said->head.apart) return 0;
    if (said && (!any_refuses || refuses(said))) least = std::min(least, said->head.follows);
  }
  return least;
}

std::optional<std::string> verdict(std::span<const std::optional<frame>> frames) {
  std::vector<const header*> all;
  for (const auto& said : frames) {
    if (said) all.push_back(&said->head);
  }
  auto found = find_strangers(frames);
  if (all.empty()) return found;
  if (!found) found = compare(frames, all);
  return found ? title(*all.front()) + ": " + *found : found;
}

std::string group_by_value(std::span<const std::string> values) {
  std::string text;
  for (const auto& [value, ranks] : grouped(values)) {
    text += (text.empty() ? "" : "; ") + value + " on " + rank_list(ranks);
  }
  return text;
}

std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

}  // namespace sheaf
