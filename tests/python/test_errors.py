# SPDX-License-Identifier: MIT
"""Mistakes and absent ranks: the same error everywhere, naming ranks and values, and a group that works on."""

import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist

import sheaf
from pool import fresh, run, run_raises
from truth import patterns


def works(rank, world):
    sizes = patterns(world)[0]
    got = sheaf.all_gather(torch.full((sizes[rank],), float(rank)))
    assert got.sizes.tolist() == sizes
    assert got.tensor.sum() == sum(r * n for r, n in enumerate(sizes))


def everyone_says(world, text, body, *args):
    """The same ValueError on every rank, and a group that works on."""
    raised = run_raises(world, body, *args)
    assert [error and error[0] for error in raised] == ["ValueError"] * world, raised
    assert len({error[1] for error in raised}) == 1, raised
    assert text in raised[0][1], raised[0]
    run(world, works)


def odd_rank_out(rank, world, name):
    odd = rank == 1
    x = torch.ones(2, 3)
    match name:
        case "dtype":
            sheaf.all_gather(x.int() if odd else x)
        case "ndim":
            sheaf.all_gather(x[0] if odd else x)
        case "other size":
            sheaf.all_gather(x[:, :2] if odd else x)
        case "dim":
            sheaf.all_gather(torch.ones(3, 3), 1 if odd else 0)
        case "mode":
            sheaf.all_gather(x, grad="own" if odd else "mean")
        case "op":
            sheaf.gather_sizes(x) if odd else sheaf.all_gather(x)
        case "recording":
            with torch.set_grad_enabled(not odd):
                sheaf.all_gather(x.clone().requires_grad_())
        case "order":
            for first in (odd, not odd):
                sheaf.all_gather(torch.ones(2, 3, dtype=torch.int64) if first else x)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dtype", "ranks disagree on dtype: float32 on rank"),
        ("ndim", "ranks disagree on ndim: 2 on rank"),
        ("other size", "ranks disagree on the size of dim 1: 3 on rank"),
        ("dim", "ranks disagree on dim: 0 on rank"),
        ("mode", "ranks disagree on gradient mode: mean on rank"),
        ("op", "ranks disagree on op: all_gather on rank"),
        ("recording", "rank 1 is under no_grad while rank"),
        ("order", "ranks disagree on dtype: float32 on rank"),
    ],
)
def test_disagreement(world, name, text):
    # "order" leaves its second call undone on every rank alike: the first raises
    everyone_says(world, text, odd_rank_out, name)


def refused(rank, world, name, everywhere):
    odd = everywhere or rank == world - 1
    x = torch.ones(2, 3)
    match name:
        case "0-d":
            sheaf.all_gather(torch.tensor(1.0) if odd else x)
        case "sparse":
            sheaf.all_gather(x.to_sparse() if odd else x)
        case "quantized":
            sheaf.all_gather(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8) if odd else x)
        case "subclass":
            sheaf.all_gather(x.as_subclass(type("Strange", (torch.Tensor,), {})) if odd else x)
        case "nested":
            sheaf.all_gather(torch.nested.nested_tensor([x, x]) if odd else x)
        case "meta":
            sheaf.all_gather(x.to("meta") if odd else x)
        case "range":
            sheaf.all_gather(x, 7 if odd else 0)
        case "many dims":
            sheaf.all_gather(torch.ones((1,) * 9) if odd else torch.ones((1,) * 8))
        case "mode":
            sheaf.all_gather(x, grad="median" if odd else "sum")
        case "no tensor":
            sheaf.all_gather([1.0] if odd else x)
        case "timeout":
            sheaf.all_gather(x, timeout=-1 if odd else None)


@pytest.mark.parametrize("everywhere", [False, True], ids=["one rank", "all ranks"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("0-d", "pass x.reshape(1)"),
        ("sparse", "sparse tensors are not taken"),
        ("quantized", "quantized tensors are not taken"),
        ("subclass", "tensor subclasses such as Strange are not taken"),
        ("nested", "nested tensors are not taken"),
        ("meta", "meta tensors hold no data"),
        ("range", "dim must be from -2 to 1, got 7"),
        ("many dims", "at most 8 dims, got 9"),
        ("mode", 'got "median"'),
        ("no tensor", "a tensor is needed, got list"),
        ("timeout", "timeout must be a positive number of seconds"),
    ],
)
def test_refusal(name, text, everywhere):
    everyone_says(3, text, refused, name, everywhere)


WRONG_SIZES = {
    "length": ([2, 2], "sizes must have 3 entries, one a rank, got 2"),
    "negative": ([2, 2, -1], "sizes must not be negative, got [2, 2, -1]"),
    "own": ([2, 2, 5], "give this rank 5 rows, but it has 2"),
    "type": ([2, 2, 2.0], "sizes must be integers"),
}


def wrong_sizes(rank, world, sizes, everywhere, timeout):
    right = [2, 2, 2]
    start = time.monotonic()
    try:
        sheaf.all_gather(torch.ones(2, 3), sizes=sizes if everywhere or rank == 2 else right, timeout=timeout)
    finally:
        took = time.monotonic() - start
        assert rank != 2 or took < timeout / 2, f"the rank that sees its mistake waited {took:.1f} s"


@pytest.mark.parametrize("name", WRONG_SIZES)
def test_wrong_sizes_without_headers(name):
    sizes, text = WRONG_SIZES[name]
    raised = run_raises(3, wrong_sizes, sizes, False, 1.5)
    assert raised[2][0] == "ValueError" and text in raised[2][1], raised[2]
    for rank in (0, 1):
        kind, said = raised[rank]
        assert kind == "DistBackendError", raised[rank]
        assert "no answer from rank 2 within 1.5 s" in said and text in said, said
    run(3, works)


def checked(rank, world):
    """One process group with SHEAF_CHECK=1: what would end at the deadline is a ValueError on every rank."""
    said = []
    for sizes, _ in WRONG_SIZES.values():
        with pytest.raises(ValueError, match=" #") as caught:
            sheaf.all_gather(torch.ones(2, 3), sizes=sizes if rank == 2 else [2, 2, 2])
        said.append(str(caught.value))
    for call in (
        lambda: sheaf.reduce_scatter(torch.ones(6, 3 if rank else 2), [2, 2, 2]),
        lambda: sheaf.reduce_scatter(torch.ones(6, 3), [2, 2, 2] if rank else [1, 3, 2]),
        lambda: sheaf.reduce_scatter(torch.ones(6), [2, 2, 2], op="sum" if rank else "mean"),
        lambda: sheaf.reduce_scatter(torch.ones(6), [2, 2, 2]) if rank else sheaf.all_gather(torch.ones(6)),
    ):
        with pytest.raises(ValueError, match=" #") as caught:
            call()
        said.append(str(caught.value))
    x = torch.ones(rank + 1, requires_grad=True)
    sheaf.all_gather(x, sizes=[1, 2, 3]).tensor.sum().backward()
    assert x.grad.tolist() == [3.0] * (rank + 1)
    return said


def test_headers_of_sized_calls():
    outcomes = fresh(3, checked, env={"SHEAF_CHECK": "1"}, timeout=120)
    assert all(outcome.error is None for outcome in outcomes), outcomes
    said = [outcome.value for outcome in outcomes]
    assert said[0] == said[1] == said[2], said
    for (_, text), got in zip(WRONG_SIZES.values(), said[0], strict=False):
        assert text in got, said[0]
    assert "the size of dim 1" in said[0][4] and "sizes: [1, 3, 2] on rank 0" in said[0][5], said[0]
    assert "mean on rank 0" in said[0][6] and "op: all_gather on rank 0" in said[0][7], said[0]


def settings_differ(rank, world):
    os.environ["SHEAF_CHECK"] = str(rank % 2)
    sheaf.all_gather(torch.ones(1))


def test_settings_are_compared():
    outcomes = fresh(2, settings_differ)
    said = {outcome.error for outcome in outcomes}
    assert len(said) == 1, said
    kind, text = said.pop()
    assert kind == "ValueError" and "SHEAF_CHECK=0" in text and "SHEAF_CHECK=1" in text, text


def sizes_disagree(rank, world):
    sheaf.all_gather(torch.ones(2), sizes=[2, 2, 3] if rank == 0 else [2, 2, 2], timeout=1)


def test_sizes_that_disagree_never_match():
    # rank 2 has 2 rows, so only rank 0's sizes are wrong, and rank 0 cannot see it
    for kind, text in run_raises(3, sizes_disagree):
        assert kind == "DistBackendError" and "no answer from rank" in text, text
        assert "sizes [2, 2, 3]" in text and "sizes [2, 2, 2]" in text, text
    run(3, works)


def different_ops(rank, world):
    if rank == 0:
        sheaf.reduce_scatter(torch.ones(6), [2, 2, 2], timeout=1)
    sheaf.all_gather(torch.ones(6), timeout=1)


def test_calls_of_different_kinds():
    raised = run_raises(3, different_ops)
    assert "rank 0 gave up reduce_scatter" in raised[1][1] or "rank 0 is in reduce_scatter" in raised[1][1], raised[1]
    assert "all_gather" in raised[0][1].split("no answer")[1], raised[0]
    run(3, works)


def late(rank, world):
    if rank == 1:
        time.sleep(2)
    sheaf.all_gather(torch.ones(rank + 1), timeout=0.7)


def test_a_late_rank_is_named_and_the_group_works_on():
    raised = run_raises(3, late)
    for rank in (0, 2):
        kind, text = raised[rank]
        assert kind == "DistBackendError" and "no answer from rank 1 within 0.7 s; rank 1 never came" in text, text
    assert raised[1] is None, "what the others had posted was withdrawn"
    run(3, works)


def skipped_backward(rank, world):
    x = torch.ones(3, requires_grad=True)
    y, _ = sheaf.all_gather(x, timeout=1)
    if rank != 1:
        y.sum().backward()


def test_a_rank_that_skips_the_backward():
    outcomes = fresh(3, skipped_backward)
    assert outcomes[1].error is None
    for rank in (0, 2):
        kind, text = outcomes[rank].error
        assert kind == "DistBackendError" and "rank 1 never came" in text and "differentiates #1" in text, text


def out_of_step(rank, world):
    """Two groups in different orders."""
    pairs = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    order = pairs if rank == 0 else pairs[::-1]
    for group in order:
        sheaf.all_gather(torch.ones(1), group=group, timeout=1.5)


def test_groups_in_different_orders():
    for rank, outcome in enumerate(fresh(2, out_of_step)):
        kind, text = outcome.error
        assert kind == "DistBackendError", text
        assert f"rank {1 - rank} never came: it " in text and 'all_gather #1 (float32 [1], dim 0) of group "' in text, (
            text
        )


def dies(rank, world):
    sheaf.all_gather(torch.ones(1))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sheaf.all_gather(torch.ones(1), timeout=20)


def test_a_dead_rank_is_named():
    start = time.monotonic()
    outcomes = fresh(3, dies, timeout=60)
    assert outcomes[1].returncode == -signal.SIGKILL
    for rank in (0, 2):
        kind, text = outcomes[rank].error
        assert kind == "DistBackendError" and "lost rank" in text, text
    assert any("lost rank 1" in outcomes[rank].error[1] for rank in (0, 2))
    assert time.monotonic() - start < 45


def interrupted(rank, world, backward):
    x = torch.ones(2, requires_grad=True)
    y, _ = sheaf.all_gather(x, timeout=30)
    if rank == 1:
        time.sleep(4)
        return 0.0
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        y.sum().backward() if backward else sheaf.all_gather(x, timeout=30)
        for _ in range(100):
            time.sleep(0.01)
    except (KeyboardInterrupt, RuntimeError):
        took = time.monotonic() - start
        try:
            for _ in range(10):
                time.sleep(0.01)  # an error that came through autograd is followed by the interrupt itself
        except KeyboardInterrupt:
            pass
        return took
    raise AssertionError("Ctrl-C was lost")


@pytest.mark.parametrize("backward", [False, True])
def test_control_c_ends_a_wait(backward):
    outcomes = fresh(2, interrupted, backward)
    assert outcomes[0].error is None and outcomes[0].value < 1.5, outcomes[0]


def unknown_group(rank, world):
    sheaf.all_gather(torch.ones(1), group="nobody")


def test_unknown_group():
    for kind, text in run_raises(2, unknown_group):
        assert "nobody" in text, (kind, text)
    run(2, works)


def not_a_member(rank, world):
    group = dist.new_group([0, 1])
    if rank < 2:
        assert sheaf.all_gather(torch.ones(1), group=group).sizes.tolist() == [1, 1]
        return
    with pytest.raises(ValueError, match="not a rank of the group"):
        sheaf.all_gather(torch.ones(1), group=group)
    return


def test_a_process_outside_the_group():
    run(3, not_a_member)


def unsummable(rank, world):
    with pytest.raises(ValueError, match="bool tensors have no sum"):
        sheaf.reduce_scatter(torch.ones(world, dtype=torch.bool), [1] * world)
    with pytest.raises(ValueError, match="integer tensors have no mean"):
        sheaf.reduce_scatter(torch.ones(world, dtype=torch.int64), [1] * world, op="mean")
    with pytest.raises(ValueError, match=f"add up to {world}, but the tensor has {world + 1}"):
        sheaf.reduce_scatter(torch.ones(world + 1), [1] * world)
    works(rank, world)


@pytest.mark.parametrize("world", [1, 2])
def test_sums_that_mean_nothing(world):
    run(world, unsummable)
