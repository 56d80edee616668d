# SPDX-License-Identifier: MIT
"""What programs do with a compiled gather, and what they cannot: groups by name, split, timeouts, transforms."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.callback import CallbackTrigger, callback_handler
from torch.nn.functional import cross_entropy

import sheaf
from compiled import RUNS_INDUCTOR, WHY_NOT, compiling
from pool import run
from test_compile import KNOWN, KNOWN_NAMES

pytestmark = pytest.mark.usefixtures("engine")


def uses():
    """Losses of x and every rank's rows, by name."""
    group = dist.group.WORLD
    name = group.group_name
    module = sheaf.nn.AllGather(group=group)
    limit = timedelta(seconds=30)

    def summed_by_name(x, rows):
        y = sheaf.all_gather(x, group=name).tensor
        ((z, _),) = sheaf.all_gather_coalesced([x], group=name)
        (mine,) = sheaf.reduce_scatter_coalesced([y * z], rows, group=name)
        return (mine * sheaf.reduce_scatter(y, rows, group=name)).sum() * sheaf.offset(rows, group=name)

    def split_up(x, rows):
        y, learned = sheaf.all_gather(x)
        both = zip(sheaf.split(y, learned), sheaf.split(y * y, rows), strict=True)
        return sum((i + 1) * (a.sin() * b).sum() for i, (a, b) in enumerate(both))

    return {
        "module": lambda x, rows: (module(x).tensor * module(x, rows).tensor).sum(),
        "by name": summed_by_name,
        "split": split_up,
        "timedelta": lambda x, rows: sheaf.all_gather(x, timeout=limit).tensor.sin().sum(),
    }


def like_eager(rank, world):
    for name, body in uses().items():
        with compiling():
            compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
            for more in (0, 3):
                rows = torch.tensor([r + 2 + more for r in range(world)])
                results = []
                for call in (body, compiled):
                    x = torch.linspace(0.1, 1.0, (rank + 2 + more) * 3).view(-1, 3).requires_grad_()
                    loss = call(x, rows)
                    loss.backward()
                    results.append((loss.detach(), x.grad))
                torch.testing.assert_close(*results, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("world", [2, 3])
def test_like_eager(world):
    run(world, like_eager, timeout=120)


def transformed(rank, world):
    """Tangents would be lost without a word."""
    x = torch.ones(2, 3)
    calls = (
        lambda x: sheaf.all_gather(x).tensor,
        lambda x: sheaf.all_gather(x, sizes=[2] * world, grad="own").tensor,
        lambda x: sheaf.all_gather_coalesced([x, x])[1].tensor,
        lambda x: sheaf.reduce_scatter(x, [2] + [0] * (world - 1)),
        lambda x: sheaf.all_gather(x, async_op=True).wait().tensor,
    )
    for call in calls:
        for transform in (
            lambda x, call=call: torch.func.jvp(call, (x,), (x,)),
            lambda x, call=call: torch.func.grad(lambda x: call(x).sum())(x),
            lambda x, call=call: torch.func.vmap(torch.func.grad(lambda x: call(x).sum()))(x[None]),
        ):
            for fullgraph in (True, False):
                torch._dynamo.reset()
                with pytest.raises(Exception, match=r"torch\.func transforms are not supported"):
                    torch.compile(transform, fullgraph=fullgraph, backend="aot_eager")(x)
    assert sheaf.all_gather(x).tensor.shape == (2 * world, 3), "the group works on"


def test_transforms_are_refused():
    run(2, transformed, timeout=120)


def contrastive(rank, world, known):
    def single(x, given):
        y, sizes = sheaf.all_gather(x, sizes=given)
        return cross_entropy(x @ y.t(), torch.arange(x.shape[0]) + sheaf.offset(sizes))

    def several(x, given):
        (y, _), (z, _) = sheaf.all_gather_coalesced([x, x * 2], sizes=given)
        return cross_entropy(x @ (y + z).t(), torch.arange(x.shape[0]))

    compare_under_inductor(rank, world, known, [single, several])


def compare_under_inductor(rank, world, known, bodies, inputs=1):
    for body in bodies:
        with compiling():
            compiled = torch.compile(body, fullgraph=True)
            for more in (0, 1, 4):
                results = []
                for call in (body, compiled):
                    torch.manual_seed(rank)
                    xs = [torch.randn(rank + 2 + more, 4, requires_grad=True) for _ in range(inputs)]
                    loss = call(*xs, known and known([r + 2 + more for r in range(world)]))
                    loss.backward()
                    results.append((loss.detach(), *[x.grad for x in xs]))
                torch.testing.assert_close(*results, msg=lambda text, body=body: f"{body.__name__}: {text}")


def both_ways(rank, world):
    """Every tensor's own rows times those that were gathered of the other, as CLIP has it."""

    def paired(image, text, given):
        (images, _), (texts, _) = sheaf.all_gather_coalesced([image, text], sizes=given)
        a, b = sheaf.reduce_scatter_coalesced([images, texts], given)  # and the own rows of sums
        labels = torch.arange(image.shape[0])
        return cross_entropy(image @ texts.t(), labels) + (text @ images.t() + b @ images.t() + a @ texts.t()).sum()

    compare_under_inductor(rank, world, torch.tensor, [paired], inputs=2)


@pytest.mark.slow
@pytest.mark.parametrize("known", KNOWN, ids=KNOWN_NAMES)
def test_a_contrastive_loss_under_inductor(known, engine):
    """A product of the own and the gathered rows, whose numbers it does not know to be related."""
    if known and engine == "c10d":
        pytest.skip("the graph is that of the other engine, and takes a while")
    run(2, contrastive, known, timeout=200)


@pytest.mark.slow
@pytest.mark.skipif(not RUNS_INDUCTOR, reason=WHY_NOT)
def test_losses_of_two_tensors_under_inductor(engine):
    if engine == "c10d":
        pytest.skip("the graph is that of the other engine, and takes a while")
    run(2, both_ways, timeout=200)


def wrong_sizes(rank, world):
    """In all less than what rank 0 has: the op's to refuse, on every rank."""
    for known in (list, torch.tensor):
        with compiling():
            compiled = torch.compile(
                lambda x, sizes: sheaf.all_gather(x, sizes=sizes), fullgraph=True, backend="aot_eager"
            )
            for rows in (4, 5, 1):
                x = torch.ones(rows if rank == 0 else 2, 3)
                assert compiled(x, known([rows] + [2] * (world - 1))).tensor.shape == (rows + 2 * world - 2, 3)
            x = torch.ones(9 if rank == 0 else 2, 3)
            with pytest.raises(ValueError, match=r"sizes"):
                compiled(x, known([1] + [2] * (world - 1)))
    assert sheaf.all_gather(x[:1]).tensor.shape == (world, 3), "the group works on"


def test_wrong_sizes_are_refused():
    run(2, wrong_sizes, timeout=120)


def unlike(rank, world):
    """What Sheaf tells torch of its lists of sizes stays with them: others are constants until they change."""
    with compiling() as compiled_so_far:
        scaled = torch.compile(lambda x, by: sheaf.all_gather(x * by[0], sizes=by[1]).tensor, backend="aot_eager")
        for factor in (2, 3):
            y = scaled(torch.ones(2, 3), [factor, [2] * world])
            torch.testing.assert_close(y, torch.full((2 * world, 3), float(factor)))
        assert compiled_so_far() == 2
        static = torch.compile(lambda x, by: sheaf.all_gather(x, sizes=by).tensor, dynamic=False, backend="aot_eager")
        for more in range(3):
            sizes = [2, *[2 + more] * (world - 1)]
            assert static(torch.ones(sizes[rank], 3), sizes).shape[0] == sum(sizes)
        assert compiled_so_far() == 5
    assert not torch.compiler.config.dynamic_sources
    unread = [2, [torch.ones(2).to_sparse(), 2]]  # what torch cannot read
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        scaled(torch.ones(2, 3), unread)
    assert not torch.compiler.config.dynamic_sources
    # Nor where another thread compiles until later: settings are each thread's own.
    whole = torch.compile(lambda x, by: sheaf.all_gather(x, sizes=by[1]).tensor, fullgraph=True, backend="aot_eager")
    with callback_handler.install_callbacks(CallbackTrigger.LAZY_BACKWARD, "another"):
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            whole(torch.ones(2, 3), unread)
        assert not torch.compiler.config.dynamic_sources


def test_other_numbers_stay_constants():
    run(2, unlike, timeout=60)


def known_shapes(rank, world):
    """Numbers in code and own rows are known to a compiler, and so is their sum: programs may use it as a shape."""

    def in_code(x, sizes):
        y = sheaf.all_gather(x, sizes=[1] + [4] * (world - 1)).tensor
        return y.view(4 * world - 3, 3) * 2 if y.shape[0] == 4 * world - 3 else y

    def even(x, sizes):
        y = sheaf.all_gather(x, sizes=[x.shape[0]] * world).tensor
        return y.view(world, x.shape[0], 3).flatten(0, 1) * 2 if y.shape[0] > 1 else y

    def masked(x, sizes):
        return sheaf.all_gather(x[x[:, 0] > 0], sizes=sizes).tensor * 2

    def added(x, sizes):
        y = sheaf.all_gather(x, sizes=sizes).tensor
        mine = x + sheaf.reduce_scatter(y, sizes)
        return sheaf.all_gather(mine - world * x, sizes=sizes).tensor * 2

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for body in (in_code, even, masked, added):
            with compiling():
                compiled = torch.compile(body, fullgraph=True, backend="aot_eager")
                for few, many in ((1, 4),) if body is in_code else ((1, 4), (2, 3), (5, 6)):
                    sizes = [many if body is even else few] + [many] * (world - 1)
                    y = compiled(torch.ones(sizes[rank], 3), sizes)
                    torch.testing.assert_close(y, torch.full((sum(sizes), 3), 2.0), msg=body.__name__)


def test_shapes_that_are_known_to_compilers():
    run(2, known_shapes, timeout=60)
