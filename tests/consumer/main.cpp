// SPDX-License-Identifier: MIT
// A program outside the project, which sees only what is installed: two ranks, as threads, gather ragged tensors.
#include <torch/torch.h>

#include <iostream>
#include <sheaf/sheaf.hpp>
#include <stdexcept>

// Rank r holds r + 1 rows of r + 1; rank q's loss weighs the gathered rows with q + 1.
void gather(const sheaf::group& group) {
  const int rank = group.rank();
  const auto x = torch::full({rank + 1, 3}, rank + 1.0, torch::requires_grad());
  const auto [gathered, sizes] = sheaf::all_gather(x, {.group = group});
  (gathered * (rank + 1)).sum().backward();

  const auto expected = torch::tensor({1.0F, 2.0F, 2.0F}).unsqueeze(1).expand({3, 3});
  if (!gathered.equal(expected)) throw std::runtime_error("wrong rows");
  if (!sizes.equal(torch::tensor({1, 2}))) throw std::runtime_error("wrong sizes");
  if (!x.grad().equal(torch::full_like(x, 3.0))) throw std::runtime_error("wrong gradient");
}

int main() {
  sheaf::spawn(2, gather);
  std::cout << "consumer: 2 ranks gathered 3 rows\n";
}
