# SPDX-License-Identifier: MIT
"""The ops beside autograd's other parts: autocast, no_grad, inference mode, hooks, kept graphs, threads; and what is
refused. Against one process."""

import itertools
import threading

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import sheaf
from agree import everyone_says, works
from company import Model, batches, close, gradients, loss, one_process, sizes_of
from pool import run
from truth import own_rows, rank_sum, same, values

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.slow]
WORLD = 4


def autocast(rank, world):
    """Layers run in bfloat16 before and after the gather, which takes what it gets: bit for bit the truth."""
    sizes = sizes_of(world)
    weights = [values(60 + r, (4, 3), torch.float32) / 8 for r in range(2)]
    inputs = [values(70 + r, (rows, 4), torch.float32) for r, rows in enumerate(sizes)]
    heads = [values(80 + r, (3, 2), torch.float32) for r in range(world)]
    with torch.autocast("cpu", torch.bfloat16):
        x = inputs[rank].requires_grad_()
        y, _ = sheaf.all_gather(x @ weights[0], grad="mean")
        z = y @ heads[rank]
        mine = sheaf.reduce_scatter(z, sizes)
        blocks = [each.detach() @ weights[0] for each in inputs]
        whole = torch.cat(blocks).requires_grad_()
        seen = [whole @ head for head in heads]
    assert y.dtype == z.dtype == mine.dtype == torch.bfloat16
    same(y, whole, "gathered")
    same(mine, own_rows(rank_sum([each.detach() for each in seen]), sizes, rank, 0), "scattered")
    mine.sum().backward()
    told = [torch.autograd.grad(each.sum(), whole)[0] for each in seen]
    told = own_rows(rank_sum(told, mean=True), sizes, rank, 0)
    truth = inputs[rank].detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        (truth @ weights[0]).backward(told)
    same(x.grad, truth.grad, "gradient")


def unrecorded(rank, world):
    """Without gradients, and sizes and values of inference mode used in a recorded call."""
    sizes = sizes_of(world)
    expected = torch.cat(batches(world))
    x = batches(world)[rank].requires_grad_()
    with torch.no_grad():
        y, got = sheaf.all_gather(x)
        assert not y.requires_grad and not sheaf.all_gather(x, sizes=got).tensor.requires_grad
        assert not sheaf.reduce_scatter(y, got).requires_grad
    same(y, expected, "no_grad")
    with torch.inference_mode():
        inferred, got = sheaf.all_gather(x)
        assert inferred.is_inference() and got.tolist() == sizes
        same(sheaf.reduce_scatter(inferred, got), world * batches(world)[rank], "inference")
        held = x * 2
    same(inferred, expected, "inference")
    for given in (got, None):
        same(sheaf.all_gather(held, sizes=given).tensor, 2 * expected, "an inference tensor")
    y, _ = sheaf.all_gather(x, sizes=got)
    (y * (rank + 1)).sum().backward()
    total = sum(range(1, world + 1))
    same(x.grad, torch.full_like(x, total), "sizes of inference mode")
    whole = expected.clone().requires_grad_()
    sheaf.reduce_scatter(whole, got).sum().backward()
    same(whole.grad, torch.ones_like(whole), "sizes of inference mode")
    # torch records nothing of an inference tensor, so that rank would leave out the backward of the others.
    with pytest.raises(ValueError, match=r"rank 2 is under no_grad while ranks 0, 1, 3 record .* pass x.clone"):
        sheaf.all_gather(held if rank == 2 else x * 2)
    (sheaf.all_gather(held.clone() if rank == 2 else x * 2).tensor * (rank + 1)).sum().backward()
    same(x.grad, torch.full_like(x, total if rank == 2 else 3 * total), "beside inference")


def doubled(parameter):
    parameter.grad.mul_(2)


def hooked(rank, world):
    """Hooks of the tensors, of the module and of its parameters; each sees, and may change, the gradient once."""
    model = Model()
    said = []
    model.gather.register_full_backward_pre_hook(lambda _, seen: said.append(("pre", seen[0])))
    model.gather.register_full_backward_hook(lambda _, mine, seen: said.append(("full", mine[0])))
    model.gather.register_forward_hook(lambda _, __, got: said.append(("forward", got.sizes.tolist())))
    model.before.weight.register_post_accumulate_grad_hook(doubled)
    x = batches(world)[rank].requires_grad_()
    x.register_hook(lambda grad: grad * 3)
    loss(model(x), rank).backward()
    expected = one_process(world)[1][rank]
    close(gradients(model), [2 * expected[0], *expected[1:]])
    assert [name for name, _ in said] == ["forward", "pre", "full"] and said[0][1] == sizes_of(world)
    assert said[1][1].shape[0] == sum(sizes_of(world)) and said[2][1].shape[0] == sizes_of(world)[rank]

    plain = batches(world)[rank].requires_grad_()
    loss(Model()(plain), rank).backward()
    close(x.grad, 3 * plain.grad)

    # A hook on the gathered tensor changes what this rank tells the others.
    x = batches(world)[rank].requires_grad_()
    y, _ = sheaf.all_gather(x)
    y.register_hook(lambda grad: grad * (rank + 1))
    y.retain_grad()
    y.sum().backward()
    close(x.grad, torch.full_like(x, sum(range(1, world + 1))))
    close(y.grad, torch.full_like(y, rank + 1))


def kept(rank, world):
    """A graph used twice, on the whole and by autograd.grad, and freed at last."""
    ids = torch.arange(3)
    ways = (
        lambda x, given: sheaf.all_gather(x, sizes=given),
        lambda x, given: sheaf.all_gather(x, sizes=given, async_op=True).wait(),
        lambda x, given: sheaf.all_gather_coalesced([ids, x], sizes=[None, given])[1],
        lambda x, given: sheaf.all_gather_coalesced([ids, x], sizes=[None, given], async_op=True).wait()[1],
    )
    for gather, given in itertools.product(ways, (None, sizes_of(world))):
        x = batches(world)[rank].requires_grad_()
        y, _ = gather(x, given)
        out = (y**2).sum() * (rank + 1)
        (first,) = torch.autograd.grad(out, x, retain_graph=True)
        out.backward(retain_graph=True)
        out.backward()
        expected = 2 * x.detach() * sum(range(1, world + 1))
        close(first, expected)
        close(x.grad, 2 * expected)
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
        out = gather(x, given)[0].sum()  # nothing but the gather has anything to keep
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
    sizes = sizes_of(world)
    starts = (
        lambda x: sheaf.all_gather(x, grad="own", async_op=True).wait().tensor,
        lambda x: sheaf.reduce_scatter(torch.cat([x] * sum(sizes))[: sum(sizes)], sizes, async_op=True).wait(),
        lambda x: sheaf.reduce_scatter_coalesced([x.new_ones(sum(sizes)) * x.sum()], sizes, async_op=True).wait()[0],
    )
    for start in starts:
        x = torch.ones(1, 2, requires_grad=True)
        out = start(x).sum()
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
    works(rank, world)


def threads(rank, world):
    """Three threads, each with a group of its own, at once: forward and backward, small and large blocks."""
    groups = [dist.new_group() for _ in range(3)]
    wrong = []

    def work(number):
        try:
            for step in range(6):
                rows = [(r + step + number) % 3 * (1 if step % 2 else 3000) for r in range(world)]
                x = torch.full((rows[rank], 2), 10.0 * number + rank, requires_grad=True)
                y, got = sheaf.all_gather(x, group=groups[number])
                (y * (rank + 1 + number)).sum().backward()
                truth = torch.cat([torch.full((n, 2), 10.0 * number + r) for r, n in enumerate(rows)])
                assert got.tolist() == rows
                same(y, truth, f"thread {number}, step {step}")
                same(x.grad, torch.full_like(x, sum(r + 1 + number for r in range(world))), "gradient")
        except BaseException as error:
            wrong.append(error)

    crew = [threading.Thread(target=work, args=(number,)) for number in range(len(groups))]
    for each in crew:
        each.start()
    for each in crew:
        each.join()
    assert not wrong, wrong


def default_device(rank, world):
    """What is made without a device is made elsewhere; sizes stay on the host."""
    rows = [r + 1 for r in range(world)]
    x, ids = torch.full((rank + 1, 2), float(rank)), torch.arange(rank + 1)
    truth = torch.cat([torch.full((n, 2), float(r)) for r, n in enumerate(rows)])
    with torch.device("meta"):
        results = [
            sheaf.all_gather(x),
            sheaf.all_gather(x, sizes=rows),
            sheaf.all_gather(x, sizes=rows, async_op=True).wait(),
            sheaf.all_gather_coalesced([x, ids], sizes=rows)[0],
            sheaf.all_gather_coalesced([x, ids], sizes=[rows, None])[0],
            sheaf.all_gather_coalesced([x, ids], sizes=[None, rows])[0],
        ]
        sums = [
            sheaf.reduce_scatter(truth, rows),
            *sheaf.reduce_scatter_coalesced([truth, truth], rows),
            *sheaf.reduce_scatter_coalesced([truth, truth], [rows, tuple(rows)]),
        ]
        held = sheaf.all_gather(torch.zeros(3, 2, device="cpu"), valid=torch.tensor(rank % 3, device="cpu"))
        listed = sheaf.compat.spear_tts.all_gather_variable_dim(x, 0, rows)
        _, split = sheaf.compat.st_moe.split_by_rank(truth.split(rows))
    for y, sizes in [*results, listed]:
        assert sizes.is_cpu and sizes.tolist() == rows
        same(y, truth, "gathered")
    for mine in sums:
        same(mine, world * x, "summed")
    assert split.is_cpu and split.tolist() == rows
    assert held.sizes.tolist() == [r % 3 for r in range(world)]


BESIDE = [autocast, unrecorded, hooked, kept, threads, default_device]


@pytest.mark.parametrize("body", BESIDE, ids=lambda body: body.__name__)
def test_beside(body):
    run(WORLD, body)


def transformed(rank, world, name, everywhere):
    odd = everywhere or rank == world - 1
    x = batches(world)[rank]
    sizes = sizes_of(world)
    if name == "jvp":
        torch.func.jvp(torch.sin, (x,), (x,))  # the first one imports for a second or two
    sheaf.gather_sizes(x)  # in step from here

    def gathered(x):
        return sheaf.all_gather(x).tensor.sum()

    def given(x):
        return sheaf.all_gather(x, sizes=sizes).tensor.sum()

    def scattered(y):
        return sheaf.reduce_scatter(y, sizes).sum()

    def together(x, **how):
        return sheaf.all_gather_coalesced([x, x], **how)

    y = torch.ones(sum(sizes), 2)
    match name:
        case "grad of a coalesced call":
            torch.func.grad(lambda x: together(x)[0].tensor.sum())(x) if odd else together(x)
        case "jvp of a coalesced call":
            torch.func.jvp(lambda x: together(x)[0].tensor, (x,), (x,)) if odd else together(x)
        case "grad of an asynchronous coalesced call":
            started = together(x, async_op=True) if not odd else None
            torch.func.grad(lambda x: together(x, async_op=True).wait()[0].tensor.sum())(x) if odd else started.wait()
        case "grad of an asynchronous call":
            started = sheaf.all_gather(x, async_op=True) if not odd else None
            torch.func.grad(lambda x: sheaf.all_gather(x, async_op=True).wait()[0].sum())(x) if odd else started.wait()
        case "grad":
            torch.func.grad(gathered)(x) if odd else gathered(x)
        case "vjp":
            torch.func.vjp(gathered, x) if odd else gathered(x)
        case "jacrev":
            torch.func.jacrev(gathered)(x) if odd else gathered(x)
        case "jvp":
            torch.func.jvp(gathered, (x,), (x,)) if odd else gathered(x)
        case "grad with sizes":
            torch.func.grad(given)(x) if odd else given(x)
        case "grad of reduce_scatter":
            torch.func.grad(scattered)(y) if odd else scattered(y)
        case "vmap of a coalesced call":
            torch.vmap(lambda x: together(x)[0].tensor)(torch.stack([x, x])) if odd else together(x)
        case "vmap of an asynchronous coalesced call":
            started = together(x, async_op=True) if not odd else None
            several = torch.vmap(lambda x: together(x, async_op=True).wait()[0].tensor)
            several(torch.stack([x, x])) if odd else started.wait()
        case "vmap of an asynchronous call":
            started = sheaf.all_gather(x, async_op=True) if not odd else None
            several = torch.vmap(lambda x: sheaf.all_gather(x, async_op=True).wait()[0])
            several(torch.stack([x, x])) if odd else started.wait()
        case "vmap of a coalesced reduce_scatter":
            several = torch.vmap(lambda y: sheaf.reduce_scatter_coalesced([y, y], sizes)[0])
            several(torch.stack([y, y])) if odd else sheaf.reduce_scatter_coalesced([y, y], sizes)
        case "vmap of an asynchronous reduce_scatter":
            started = sheaf.reduce_scatter(y, sizes, async_op=True) if not odd else None
            several = torch.vmap(lambda y: sheaf.reduce_scatter(y, sizes, async_op=True).wait())
            several(torch.stack([y, y])) if odd else started.wait()
        case "forward mode":
            with torch.autograd.forward_ad.dual_level():
                gathered(torch.autograd.forward_ad.make_dual(x, x) if odd else x)
        case "forward mode of reduce_scatter":
            with torch.autograd.forward_ad.dual_level():
                scattered(torch.autograd.forward_ad.make_dual(y, y) if odd else y)
        case "forward mode of a coalesced call":
            with torch.autograd.forward_ad.dual_level():
                together(torch.autograd.forward_ad.make_dual(x, x) if odd else x)
        case "forward mode of an asynchronous call":
            with torch.autograd.forward_ad.dual_level():
                sheaf.all_gather(torch.autograd.forward_ad.make_dual(x, x) if odd else x, async_op=True).wait()
        case "DTensor" | "DTensor in a coalesced call" | "DTensor in an asynchronous call":
            spread = distribute_tensor(x, init_device_mesh("cpu", (world,)), [Replicate()], src_data_rank=None)
            if "coalesced" in name:
                together(spread if odd else x)
            elif "asynchronous" in name:
                sheaf.all_gather(spread if odd else x, async_op=True).wait()
            else:
                gathered(spread if odd else x)


FUNC = "torch.func transforms are not supported"
FORWARD = "forward-mode AD is not supported"
REFUSED = {
    "grad": FUNC,
    "vjp": FUNC,
    "jacrev": FUNC,
    "jvp": FUNC,
    "grad of a coalesced call": FUNC,
    "jvp of a coalesced call": FUNC,
    "grad of an asynchronous coalesced call": FUNC,
    "grad of an asynchronous call": FUNC,
    "grad with sizes": FUNC,
    "grad of reduce_scatter": FUNC,
    "vmap of a coalesced call": FUNC,
    "vmap of an asynchronous coalesced call": FUNC,
    "vmap of an asynchronous call": FUNC,
    "vmap of a coalesced reduce_scatter": FUNC,
    "vmap of an asynchronous reduce_scatter": FUNC,
    "forward mode": FORWARD,
    "forward mode of reduce_scatter": FORWARD,
    "forward mode of a coalesced call": FORWARD,
    "forward mode of an asynchronous call": FORWARD,
    "DTensor in a coalesced call": "tensor 0: tensor subclasses such as DTensor are not taken",
    "DTensor in an asynchronous call": "tensor subclasses such as DTensor are not taken",
    "DTensor": "tensor subclasses such as DTensor are not taken: pass its to_local()",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    everyone_says(WORLD, REFUSED[name], transformed, name, False)
    # With sizes given, and where a call is refused that is only started, all that refuse do so in their own names.
    if not any(word in name for word in ("sizes", "scatter", "asynchronous")):
        everyone_says(WORLD, REFUSED[name], transformed, name, True)
