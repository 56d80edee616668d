// SPDX-License-Identifier: MIT
// Differentiable ragged collectives: everything but the torch module, which has a header of its own (sheaf/nn.hpp)
// because it costs seconds to compile.
#pragma once

#include <sheaf/all_gather.hpp>
#include <sheaf/all_gather_coalesced.hpp>
#include <sheaf/compat.hpp>
#include <sheaf/error.hpp>
#include <sheaf/gradient.hpp>
#include <sheaf/group.hpp>
#include <sheaf/handle.hpp>
#include <sheaf/layout.hpp>
#include <sheaf/per_tensor.hpp>
#include <sheaf/reduce_scatter.hpp>
#include <sheaf/reduce_scatter_coalesced.hpp>
