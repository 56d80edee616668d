// SPDX-License-Identifier: MIT
// nn::AllGather: a torch module that computes, clones, prints and is saved like any other.
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>
#include <torch/csrc/api/include/torch/serialize.h>

#include <sheaf/nn.hpp>
#include <sstream>

#include "cpp/cases.hpp"
#include "cpp/truth.hpp"

namespace sheaf::test {
namespace {

at::Tensor truth(const ragged& now, gradient mode, int rank) {
  const auto upstream = mode == gradient::own ? now.whole(rank) : mode == gradient::sum ? now.summed() : now.averaged();
  return now.rows_of(upstream, rank);
}

void check(const group& me, sheaf::nn::AllGather& layer, const ragged& now, gradient mode) {
  for (const bool given : {false, true}) {
    const auto x = leaf(now.block(me.rank()));
    const auto [y, sizes] = layer(x, now.sizes_if(given));
    expect_equal(y, now.gathered(), "forward");
    expect_equal(sizes, now.sizes_tensor(), "sizes");
    expect_equal(grad_of(y, x, now.whole(me.rank())), truth(now, mode, me.rank()), "gradient");
  }
}

void forward_and_gradient(const group& me) {
  for (const auto mode : all_modes) {
    for (const std::int64_t dim : {0, 1, -1}) {
      ragged now{.sizes = extents(me.world(), 2), .dim = dim};
      now.sizes[0] = 0;
      sheaf::nn::AllGather layer(sheaf::nn::AllGatherOptions(dim).grad(mode).group(me));
      check(me, layer, now, mode);
    }
  }
}

void options_have_defaults(const group&) {
  const sheaf::nn::AllGather layer;
  expect(layer->options.dim() == 0 && layer->options.grad() == gradient::sum, "dim 0, summed gradients");
  expect(layer->parameters().empty() && layer->buffers().empty(), "nothing to learn");
}

void clone_is_a_layer_of_its_own(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2), .dim = 1};
  sheaf::nn::AllGather layer(sheaf::nn::AllGatherOptions(1).grad(gradient::mean).group(me));
  sheaf::nn::AllGather copy(std::dynamic_pointer_cast<sheaf::nn::AllGatherImpl>(layer->clone()));
  layer->options.dim(0);
  check(me, copy, now, gradient::mean);
}

void prints_its_options(const group& me) {
  const sheaf::nn::AllGather layer(sheaf::nn::AllGatherOptions(-1).grad(gradient::own).group(me));
  std::ostringstream text;
  text << layer;
  expect(text.str() == "sheaf::nn::AllGather(dim=-1, grad=own)", text.str() + " shows the options");
}

// Two layers around a gather, as a model would have it.
struct tower : torch::nn::Module {
  explicit tower(const group& of)
      : before(register_module("before", torch::nn::Linear(4, 3))),
        gather(register_module("gather", sheaf::nn::AllGather(sheaf::nn::AllGatherOptions(0).group(of)))) {}
  at::Tensor forward(const at::Tensor& x) { return gather(before(x)).tensor; }
  torch::nn::Linear before;
  sheaf::nn::AllGather gather;
};

void saves_and_loads_inside_a_model(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2), .shape = {0, 4}, .type = at::kFloat};
  const auto first = std::make_shared<tower>(me);
  const auto second = std::make_shared<tower>(me);
  {
    const at::NoGradGuard no_grad;
    first->before->weight.copy_(noise({3, 4}, 1, at::kFloat));
    first->before->bias.copy_(noise({3}, 2, at::kFloat));
  }
  std::stringstream file;
  torch::save(first, file);
  auto loaded = second;
  torch::load(loaded, file);
  const auto x = now.block(me.rank());
  const auto want = first->forward(x);
  expect_equal(second->forward(x), want, "the loaded model's gather");

  std::vector<at::Tensor> blocks;
  for (int rank = 0; rank < me.world(); ++rank) {
    blocks.push_back(at::linear(now.block(rank), noise({3, 4}, 1, at::kFloat), noise({3}, 2, at::kFloat)));
  }
  const ragged outcome{.sizes = now.sizes, .shape = {0, 3}};
  expect_equal(want.detach(), outcome.joined(blocks), "what one process computes");
}

void stands_in_a_sequential(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  torch::nn::Sequential layers(sheaf::nn::AllGather(sheaf::nn::AllGatherOptions(0).group(me)));
  expect_equal(layers->forward<gathered>(now.block(me.rank())).tensor, now.gathered(), "sizes learned");
  const std::optional<at::Tensor> sizes = now.sizes_tensor();
  expect_equal(layers->forward<gathered>(now.block(me.rank()), sizes).tensor, now.gathered(), "sizes given");
}

void saves_and_loads_alone(const group& me) {
  const ragged now{.sizes = extents(me.world(), 2)};
  const sheaf::nn::AllGather layer(sheaf::nn::AllGatherOptions(0).group(me));
  std::stringstream file;
  torch::save(layer, file);
  sheaf::nn::AllGather loaded(sheaf::nn::AllGatherOptions(0).group(me));
  torch::load(loaded, file);
  check(me, loaded, now, gradient::sum);
}

}  // namespace

case_list nn_cases() {
  return {{"nn/forward_and_gradient", forward_and_gradient},
          {"nn/options_have_defaults", options_have_defaults},
          {"nn/clone_is_a_layer_of_its_own", clone_is_a_layer_of_its_own},
          {"nn/prints_its_options", prints_its_options},
          {"nn/stands_in_a_sequential", stands_in_a_sequential},
          {"nn/saves_and_loads_inside_a_model", saves_and_loads_inside_a_model},
          {"nn/saves_and_loads_alone", saves_and_loads_alone}};
}

}  // namespace sheaf::test
