// SPDX-License-Identifier: MIT
// Trains two towers on pairs that lie unevenly on the ranks, in C++ alone. Each rank sees its own pairs, and every pair
// of the whole batch as a candidate. From a launcher, or a shell that sets the same four variables in each process:
//   torchrun --no-python --nproc-per-node 4 build/examples/two_towers
//   RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 build/examples/two_towers &  (and RANK=1)
#include <torch/torch.h>

#include <cstdio>
#include <sheaf/sheaf.hpp>

namespace {

constexpr int steps = 60;
constexpr std::int64_t features = 16;

struct towers : torch::nn::Module {
  towers()
      : left(register_module("left", torch::nn::Linear(features, 8))),
        right(register_module("right", torch::nn::Linear(features, 8))) {}
  torch::nn::Linear left, right;
};

// Step 0 leaves rank 1 without any pair.
std::int64_t pairs_of(int rank, int step) { return step == 0 && rank == 1 ? 0 : 3 + (5 * rank + 7 * step) % 11; }

// The sum over all ranks: every rank holds the gradient of its own pairs' losses.
void sum_gradients(towers& model, const sheaf::group& group) {
  const torch::NoGradGuard off;
  for (auto& parameter : model.parameters()) {
    const auto all = sheaf::all_gather(parameter.grad().unsqueeze(0), {.group = group}).tensor;
    parameter.grad().copy_(all.sum(0));
  }
}

double train_step(towers& model, torch::optim::Adam& adam, const sheaf::group& group, int step) {
  torch::manual_seed(1000 * step + group.rank());
  const auto x = torch::randn({pairs_of(group.rank(), step), features});
  const auto left = model.left(x);
  const auto right = model.right(x + 0.1 * torch::randn_like(x));

  const auto [everyone, sizes] = sheaf::all_gather(right, {.group = group});
  const auto own = torch::arange(x.size(0)) + sheaf::offset(sizes, group);
  const auto loss = torch::nn::functional::cross_entropy(
      left.mm(everyone.t()), own, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  adam.zero_grad();
  (loss / sizes.sum()).backward();
  sum_gradients(model, group);
  adam.step();

  const auto losses = sheaf::all_gather(loss.detach().reshape(1), {.group = group}).tensor;
  return losses.sum().item<double>() / sizes.sum().item<double>();
}

}  // namespace

int main() {
  const auto group = sheaf::group::from_env();
  torch::manual_seed(0);  // the same towers on every rank
  towers model;
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(0.02));
  double first = 0, last = 0;
  for (int step = 0; step < steps; ++step) {
    last = train_step(model, adam, group, step);
    if (step == 0) first = last;
    if (group.rank() == 0 && step % 20 == 0) std::printf("step %2d  loss %.3f\n", step, last);
  }
  if (group.rank() == 0) {
    std::printf("%d ranks, %s\nloss %.3f -> %.3f\n", group.world(), group.engine().c_str(), first, last);
  }
  return last < 0.5 * first ? 0 : 1;
}
