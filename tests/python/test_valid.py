# SPDX-License-Identifier: MIT
"""Static shapes, `valid=`, on what a CPU group gets: the same as on a GPU. Each engine, and without a group."""

import pytest
import torch

import sheaf
import static_cases
from pool import run


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_like_one_process(engine, world):
    run(world, static_cases.static_shapes, "cpu")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_compiled(engine, world):
    run(world, static_cases.static_compiled, "cpu")


@pytest.mark.parametrize("world", [2, 3, 5])
def test_mistakes(engine, world):
    for texts in run(world, static_cases.static_mistakes, "cpu"):
        for text, expected in zip(texts, static_cases.MISTAKES, strict=True):
            assert expected in text, texts


def test_alone():
    x = torch.arange(10.0).view(5, 2).requires_grad_()
    y, sizes = sheaf.all_gather(x, valid=torch.tensor(3))
    truth = torch.cat([x.detach()[:3], torch.zeros(2, 2)])
    assert torch.equal(y, truth) and sizes.tolist() == [3]
    y.backward(torch.ones(5, 2) * 7)
    assert x.grad is not None and torch.equal(x.grad, torch.tensor([[7.0, 7.0]] * 3 + [[0.0, 0.0]] * 2))

    clamped = sheaf.all_gather(x, valid=torch.tensor(9))
    assert torch.equal(clamped.tensor, x) and clamped.sizes.tolist() == [5]
    with pytest.raises(ValueError, match="was clamped"):
        sheaf.all_gather(x, valid=torch.tensor(3))
    assert sheaf.all_gather(x, valid=torch.tensor(0)).tensor.eq(0).all(), "once is enough"
