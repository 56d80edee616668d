// SPDX-License-Identifier: MIT
// A second NCCL backend of a group: a communicator of its own, which meets by the store and not by the first one's
// collectives, as a split would.
#define USE_C10D_NCCL
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "c10d/backends.hpp"

namespace sheaf::c10d_engine {
namespace {

using nccl = ::c10d::ProcessGroupNCCL;

backends::pointer make_second(::c10d::Backend& own, const c10::intrusive_ptr<::c10d::Store>& store) {
  const auto like = c10::dynamic_intrusive_pointer_cast<nccl::Options>(own.getBackendOptions());
  TORCH_CHECK(like, "the group's backend has no options of NCCL's");
  auto options = c10::make_intrusive<nccl::Options>(*like);
  options->split_from.reset();
  options->group_name += ":sheaf_started";
  return c10::make_intrusive<nccl>(store, own.getRank(), own.getSize(), std::move(options));
}

// torch's NCCL and the header this is built with: some types of torch's have other sizes where these differ.
std::string check_version() {
  constexpr std::uint64_t built = (std::uint64_t{NCCL_MAJOR} << 32) | (NCCL_MINOR << 16) | NCCL_PATCH;
  if (torch::cuda::nccl::version() == built) return "";
  return "Sheaf was built with the header of another NCCL than torch's";
}

[[maybe_unused]] const bool offered = (offer_second("nccl", {make_second, check_version}), true);

}  // namespace
}  // namespace sheaf::c10d_engine
