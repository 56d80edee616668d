# SPDX-License-Identifier: MIT
"""Models with a gather under what trains them: DDP, FSDP2, meshes, accumulation, checkpoints, copies. Against one
process."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import sheaf
from company import (
    Model,
    Together,
    average,
    batches,
    close,
    gradients,
    loss,
    mean_of_losses,
    one_process,
    sizes_of,
)
from pool import run
from truth import MODES

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.slow]
WORLD = 4


def data_parallel(rank, world):
    for mode in MODES:
        parallel = DistributedDataParallel(Model(mode))
        out = parallel(batches(world)[rank])
        loss(out, rank).backward()
        expected_out, grads = one_process(world, mode)
        close(out, expected_out, mode)
        close(gradients(parallel), average(grads), mode)
        if mode == "sum":  # the rule of the documents
            close(gradients(parallel), mean_of_losses(world), "the mean of the losses")


def accumulated(rank, world):
    """Two steps without a reduction, then one with it."""
    parallel = DistributedDataParallel(Model())
    with parallel.no_sync():
        for step in (0, 1):
            loss(parallel(batches(world, step)[rank]), rank).backward()
    loss(parallel(batches(world, 2)[rank]), rank).backward()
    steps = [mean_of_losses(world, step) for step in range(3)]
    close(gradients(parallel), [sum(each) for each in zip(*steps, strict=True)])

    plain = Model()
    for step in range(2):
        loss(plain(batches(world, step)[rank]), rank).backward()
    steps = [one_process(world, step=step)[1][rank] for step in range(2)]
    close(gradients(plain), [sum(each) for each in zip(*steps, strict=True)])


def penalty(rank, world):
    """A second derivative through DDP: the loss has the gradient of the inputs in it."""
    for mode in MODES:
        parallel = DistributedDataParallel(Model(mode))
        x = batches(world)[rank].requires_grad_()
        first = loss(parallel(x), rank)
        (seen,) = torch.autograd.grad(first, x, create_graph=True)
        (first + (seen**2).sum()).backward()

        models, inputs = [Model() for _ in range(world)], [x.requires_grad_() for x in batches(world)]
        wholes = Together.apply(mode, *[m.before(x).tanh() for m, x in zip(models, inputs, strict=True)])
        losses = [loss(models[r].after(y), r) for r, y in enumerate(wholes)]
        squares = [(g**2).sum() for g in torch.autograd.grad(losses, inputs, create_graph=True)]
        (sum(losses) + sum(squares)).backward()
        close(gradients(parallel), average([gradients(model) for model in models]), mode)

    # In mode sum, by plain autograd.
    model, inputs = Model(), [x.requires_grad_() for x in batches(world)]
    out = model.after(model.before(torch.cat(inputs)).tanh())
    total = sum(loss(out, r) for r in range(world))
    squares = sum((g**2).sum() for g in torch.autograd.grad(total, inputs, create_graph=True))
    ((total + squares) / world).backward()
    parallel = DistributedDataParallel(Model())
    x = batches(world)[rank].requires_grad_()
    first = loss(parallel(x), rank)
    (first + (torch.autograd.grad(first, x, create_graph=True)[0] ** 2).sum()).backward()
    close(gradients(parallel), gradients(model), "by plain autograd")


class Otherwise(Model):
    """The same by other calls than the module's: beside ids that need no gradient, started and waited for."""

    def __init__(self, grad, way):
        super().__init__(grad)
        self.way = way

    def forward(self, x):
        hidden, ids, later = self.before(x).tanh(), torch.arange(x.shape[0]), self.way.startswith("async")
        if "coalesced" in self.way:
            got = sheaf.all_gather_coalesced([ids, hidden], grad=self.gather.grad, async_op=later)
            (all_ids, sizes), (y, _) = got.wait() if later else got
            assert all_ids.shape[0] == y.shape[0] == sizes.sum()
        else:
            y, _ = sheaf.all_gather(hidden, grad=self.gather.grad, async_op=True).wait()
        return self.after(y)


def other_calls(rank, world):
    for way in ("async", "coalesced", "async coalesced"):
        for mode in MODES:
            parallel = DistributedDataParallel(Otherwise(mode, way))
            out = parallel(batches(world)[rank])
            loss(out, rank).backward()
            expected_out, grads = one_process(world, mode)
            close(out, expected_out, (way, mode))
            close(gradients(parallel), average(grads), (way, mode))


def test_ddp():
    run(WORLD, data_parallel)


def test_other_calls_under_ddp():
    run(WORLD, other_calls)


def test_accumulation():
    run(WORLD, accumulated)


def test_second_derivative_through_ddp():
    run(WORLD, penalty)


def sharded(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    for mode in MODES:
        model = Model(mode)
        for part in (model.before, model.after, model):
            fully_shard(part, mesh=mesh)
        for _ in range(2):  # parameters are sharded again after the first
            model.zero_grad()
            out = model(batches(world)[rank])
            loss(out, rank).backward()
        expected_out, grads = one_process(world, mode)
        close(out, expected_out, mode)
        close([grad.full_tensor() for grad in gradients(model)], average(grads), mode)


def on_meshes(rank, world):
    """Two by two: parameters are sharded over columns, rows of the mesh gather; then the other way round."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("first", "second"))
    for gathers, shards in (("first", "second"), ("second", "first")):
        model = Model(group=(mesh, gathers))
        fully_shard(model, mesh=mesh[shards])
        members = dist.get_process_group_ranks(mesh.get_group(gathers))
        me = members.index(rank)
        assert model.gather.group == mesh[gathers].get_group().group_name
        out = model(batches(2, step=rank % 2 if gathers == "first" else rank // 2)[me])
        loss(out, me).backward()
        # Parameters are averaged over the ranks of the column alone: each is in a gather of its own, in the same place.
        peers = dist.get_process_group_ranks(mesh.get_group(shards))
        steps = [peer % 2 if gathers == "first" else peer // 2 for peer in peers]
        truths = [one_process(2, step=step) for step in steps]
        close(out, truths[peers.index(rank)][0], gathers)
        expected = average([grads[me] for _, grads in truths])
        close([grad.full_tensor() for grad in gradients(model)], expected, gathers)


def test_fsdp():
    run(WORLD, sharded)


def test_mesh_dims():
    run(WORLD, on_meshes)


def keep_gathers(context, op, *args, **keywords):
    return CheckpointPolicy.MUST_SAVE if op.namespace == "sheaf" else CheckpointPolicy.PREFER_RECOMPUTE


KINDS = {
    "recomputed": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "selective": {
        "use_reentrant": False,
        "context_fn": partial(create_selective_checkpoint_contexts, keep_gathers),
    },
}


def recomputed(rank, world):
    """Both kinds; the gather runs again in the backward, on every rank in the same order, or its result was kept."""
    for kind, how in KINDS.items():
        for mode in MODES:
            model = Model(mode)
            x = batches(world)[rank].requires_grad_()  # the reentrant kind asks for an input that needs a gradient
            hidden = checkpoint(lambda x: model.gather(model.before(x).tanh()).tensor, x, **how)  # noqa: B023
            out = checkpoint(lambda y: model.after(y) * 1.0, hidden, **how)  # noqa: B023
            loss(out, rank).backward()
            expected_out, grads = one_process(world, mode)
            close(out, expected_out, (mode, kind))
            close(gradients(model), grads[rank], (mode, kind))


def twice(rank, world):
    """Two gathers in one checkpoint, beside a gather outside; with sizes given and learned."""
    sizes = sizes_of(world)
    parts = batches(world)

    def inner(x, given):
        y, _ = sheaf.all_gather(x.sin(), sizes=given)
        z, _ = sheaf.all_gather(x.cos(), sizes=given)
        return y * z

    def total(whole, q):
        return (inner_truth(whole) * whole.exp() * (q + 1)).sum()

    def inner_truth(whole):
        return whole.sin() * whole.cos()

    for reentrant in (False, True):
        for given in (None, sizes):
            x = parts[rank].clone().requires_grad_()
            y = checkpoint(inner, x, given, use_reentrant=reentrant)
            (y * sheaf.all_gather(x.exp()).tensor * (rank + 1)).sum().backward()
            whole = torch.cat(parts).requires_grad_()
            sum(total(whole, q) for q in range(world)).backward()
            close(x.grad, whole.grad.split(sizes)[rank], (reentrant, given))


def test_checkpoint():
    run(WORLD, recomputed)
    run(WORLD, twice)


def replaced(rank, world):
    """torch.func.functional_call with other parameters than the module's own."""
    module = Model()
    given = {name: (p * 2).detach().requires_grad_() for name, p in module.named_parameters()}
    out = torch.func.functional_call(module, given, (batches(world)[rank],))
    loss(out, rank).backward()
    expected_out, grads = one_process(world, scale=2)
    close(out, expected_out)
    close([p.grad for p in given.values()], grads[rank])
    assert gradients(module) == [None] * 4


def copied(rank, world):
    half = dist.new_group([0, 1]), dist.new_group([2, 3])
    expected = one_process(2, "mean")
    file = io.BytesIO()
    module = Model("mean", half[rank // 2])
    torch.save(module, file)
    file.seek(0)
    copies = [module, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)]
    for number, made in enumerate(copies):
        out = made(batches(2)[rank % 2])
        loss(out, rank % 2).backward()
        close(out, expected[0], number)
        close(gradients(made), expected[1][rank % 2], number)
        assert made.gather.group == module.gather.group and made.gather.grad == "mean"


def test_functional_call():
    run(WORLD, replaced)


def test_copies_and_pickles():
    run(WORLD, copied)
