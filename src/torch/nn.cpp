// SPDX-License-Identifier: MIT
#include <ostream>
#include <sheaf/nn.hpp>

#include "core/header.hpp"

namespace sheaf::nn {

gathered AllGatherImpl::forward(const at::Tensor& x, const std::optional<at::Tensor>& sizes) {
  return all_gather(x, {.dim = options.dim(), .sizes = sizes, .grad = options.grad(), .group = options.group()});
}

void AllGatherImpl::pretty_print(std::ostream& stream) const {
  stream << "sheaf::nn::AllGather(dim=" << options.dim() << ", grad=" << sheaf::name(options.grad()) << ")";
}

}  // namespace sheaf::nn
