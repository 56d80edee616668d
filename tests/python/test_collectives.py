# SPDX-License-Identifier: MIT
"""CPU tensors carried as CUDA tensors are, by the collectives of a group's backend: SHEAF_ENGINE=collectives."""

import _thread
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import async_cases
import device_cases
import missed_cases
import pool
import sheaf
import static_cases
import test_async
import test_async_coalesced as coalesced_cases
import test_left_out as left_out
from device_cases import told
from pool import fresh, run, values
from truth import same

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _by_collectives() -> Iterator[None]:
    pool.close_all()  # workers take their engine from the environment they start in
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHEAF_ENGINE", "collectives")
        yield
        pool.close_all()


@pytest.mark.parametrize("case", [*device_cases.EVERY, *static_cases.EVERY], ids=lambda case: case.__name__)
def test_like_one_process(case):
    run(3, case, "cpu")


@pytest.mark.parametrize("case", async_cases.EVERY, ids=lambda case: case.__name__)
def test_started_calls(case):
    run(3, case, "cpu")


@pytest.mark.parametrize("case", async_cases.OF_TWO, ids=lambda case: case.__name__)
def test_starts_wait_for_nobody(case):
    run(2, case, "cpu")


COALESCED = ["gathers", "scatters", "second_order", "different_needs", "in_any_order", "errors"]


@pytest.mark.parametrize("case", COALESCED)
def test_started_calls_of_several_tensors(case):
    run(3, getattr(coalesced_cases, case))


@pytest.mark.parametrize("several", [False, True], ids=["one tensor", "several"])
def test_memory_is_flat(several):
    run(2, test_async.flat_memory, 1000, several, 8 << 20, timeout=120)


def destroyed(rank, world):
    """How many threads more there are after groups with started calls than after the first of them."""
    x = torch.ones(rank + 1, 3)

    def threads_after(groups):
        for _ in range(groups):
            group = dist.new_group()
            sheaf.all_gather(x, group=group)
            same(sheaf.all_gather(x, group=group, async_op=True).wait().tensor, torch.ones(3, 3), "value")
            dist.barrier()
            dist.destroy_process_group(group)
        deadline = time.monotonic() + 10  # groups are forgotten when nothing else is to be done
        while (now := sum(1 for _ in Path("/proc/self/task").iterdir())) > least and time.monotonic() < deadline:
            time.sleep(0.1)
        return now

    least = 1 << 20  # the first round waits for none of its own
    least = threads_after(1)
    return threads_after(10) - least


def test_nothing_is_left_of_a_group_that_started_calls():
    assert max(values(fresh(2, destroyed, env={"SHEAF_ENGINE": "collectives"}, timeout=60))) <= 0


@pytest.mark.parametrize("world", [1, 2, 5])
@pytest.mark.parametrize("case", [device_cases.gathers, device_cases.scatters], ids=lambda case: case.__name__)
def test_other_numbers_of_ranks(case, world):
    run(world, case, "cpu")


@pytest.mark.parametrize(("world", "scales"), [(2, [False, True]), (5, [False])])
def test_several_tensors_of_other_numbers_of_ranks(world, scales):
    run(world, device_cases.coalesced, "cpu", scales)


def test_sums_are_shared_out():
    run(4, device_cases.heavy_gathers, "cpu")


def test_disagreements_are_told_to_every_rank():
    said = run(3, device_cases.disagreements, "cpu")
    assert said[0] == said[1] == said[2]
    for text, expected in zip(said[0], ("size of dim 1", "dtype", "on dim", "rank 2 refuses"), strict=True):
        assert expected in text, said[0]


def test_disagreements_with_sizes_given_are_told_to_every_rank():
    said = run(3, device_cases.sized_disagreements, "cpu")
    assert said[0] == said[1] == said[2]
    for text, expected in zip(said[0], device_cases.SIZED, strict=True):
        assert expected in text, said[0]


def gives_up(rank, world):
    """Ranks on hosts of their own, where calls with sizes given come without headers. All give up #2."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    x = torch.ones(2, 3)
    sheaf.all_gather(x)
    said = [told(lambda: sheaf.all_gather(x, sizes=[3] * world))]
    said += [told(lambda: sheaf.all_gather(x)), told(lambda: sheaf.all_gather(x, sizes=[2] * world))]
    said.append(told(lambda: sheaf.all_gather_coalesced([x, x])))
    group = dist.new_group()
    same(sheaf.all_gather(x, group=group, sizes=[2] * world).tensor, torch.ones(2 * world, 3), "a new group")
    return said


def test_a_rank_that_gave_up_a_call_is_out_of_step_for_good():
    """Its later calls would be taken for the one that it gave up."""
    env = {"SHEAF_ENGINE": "collectives"}
    for said in values(fresh(2, gives_up, env=env)):
        assert "give this rank 3 rows, but it has 2" in said[0], said
        assert all("is out of step since all_gather #2" in text for text in said[1:]), said
    for said in values(fresh(2, gives_up, env={**env, "SHEAF_CHECK": "1"})):
        assert "give this rank 3 rows, but it has 2" in said[0], said
        assert said[1:] == ["nothing was raised"] * 3, said


def compiled_with_other_capacities(rank, world):
    """Ranks on hosts of their own, the first call a compiled one: capacities are compared all the same."""
    os.environ["SHEAF_HOST_ID"] = str(rank)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x, count):
        return sheaf.all_gather(x, valid=count).tensor

    said = told(lambda: step(torch.ones(5 + rank, 2), torch.tensor(3)))
    same(step(torch.ones(4, 2), torch.tensor(4)), torch.ones(4 * world, 2), "after")
    return said


def test_compiled_static_shapes_must_agree():
    for said in values(fresh(2, compiled_with_other_capacities, env={"SHEAF_ENGINE": "collectives"})):
        assert "must have the same rows, got [5, 6]" in said


def gives_up_in_every_way(rank, world):
    """Calls that this rank gives up while others carry on, and what its next call of the same group is told."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    x, wrong = torch.ones(2, 3), [3] * world
    ways = (
        lambda group: sheaf.all_gather(x, sizes=wrong, group=group, async_op=True),
        lambda group: sheaf.all_gather(x, sizes=[2.0] * world, group=group, async_op=True),
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=wrong, group=group),
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=wrong, group=group, async_op=True),
        lambda group: sheaf.reduce_scatter(x, wrong, group=group, async_op=True),
        lambda group: sheaf.reduce_scatter_coalesced([x, x], wrong, group=group, async_op=True),
        lambda group: sheaf.reduce_scatter_coalesced([x, x], [[1, 1], None], group=group),
        # These come with headers: some sizes are to be learned.
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=[None, wrong], group=group),
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=[None, [2.0] * world], group=group),
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=[None, [2.0] * world], group=group, async_op=True),
        lambda group: sheaf.all_gather_coalesced([x, x], sizes=[None, [2, 2], [2, 2]], group=group),
    )
    said = []
    for way in ways:
        group = dist.new_group()
        sheaf.all_gather(x, group=group)
        assert "sizes" in told(lambda way=way, group=group: way(group))
        said.append(told(lambda group=group: sheaf.all_gather(x, group=group)))
    return said


def test_every_call_without_headers_that_is_given_up_is_known_to_be():
    for said in values(fresh(2, gives_up_in_every_way, env={"SHEAF_ENGINE": "collectives"}, timeout=60)):
        assert all("is out of step since" in text for text in said[:7]), said
        assert said[7:] == ["nothing was raised"] * 4, said


def runs_out_of_memory(rank, world):
    """Where a copy of what is given finds no room, before any data moves. What the next call of the group is told."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    x, sizes = torch.ones(1, 1).expand(2, 2**50), [2] * world
    y = x[:1].expand(sum(sizes), -1)
    ways = (
        lambda group: sheaf.all_gather(x, sizes=sizes, group=group),
        lambda group: sheaf.all_gather(x, sizes=sizes, group=group, async_op=True).wait(),
        lambda group: sheaf.all_gather_coalesced([x[:, :1], x], sizes=sizes, group=group),
        lambda group: sheaf.reduce_scatter(y, sizes, group=group),
        lambda group: sheaf.reduce_scatter_coalesced([y[:, :1], y], sizes, group=group),
    )
    said = []
    for way in ways:
        group = dist.new_group()
        sheaf.all_gather(torch.ones(1), group=group)
        with pytest.raises(RuntimeError, match="memory"):
            way(group)
        said.append(told(lambda group=group: sheaf.all_gather(torch.ones(1), group=group)))
    return said


def test_a_rank_that_ran_out_of_memory_is_out_of_step():
    """Others may have carried on without it, unless headers tell them that it does not come."""
    env = {"SHEAF_ENGINE": "collectives"}
    for said in values(fresh(2, runs_out_of_memory, env=env, timeout=60)):
        assert all("is out of step since" in text for text in said), said
    for said in values(fresh(2, runs_out_of_memory, env={**env, "SHEAF_CHECK": "1"}, timeout=60)):
        assert said == ["nothing was raised"] * 5, said


def on_hosts_of_their_own(rank, world, case, way):
    os.environ["SHEAF_HOST_ID"] = str(rank)
    sheaf.all_gather(torch.ones(1))
    assert "/memfd:sheaf" not in Path("/proc/self/maps").read_text(), "headers through shared memory"
    getattr(left_out, case)(rank, world, way)


@pytest.mark.parametrize("way", left_out.WAYS)
@pytest.mark.parametrize("case", ["stays_away", "goes_on", "goes_on_without_headers"])
def test_a_rank_that_left_out_a_backward_is_named(case, way):
    """Forwards with sizes given have no headers there, backwards have."""
    values(fresh(left_out.WORLD, on_hosts_of_their_own, case, way, env={"SHEAF_ENGINE": "collectives"}, timeout=60))


def refused_by_all(rank, world):
    """A backward that every rank refuses, each for another reason."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    group = dist.new_group()
    sheaf.all_gather(torch.ones(1), group=group)
    y, sizes = torch.ones(4, 2), torch.tensor([-1 - rank] * world)
    with pytest.raises(ValueError, match="refuses") as caught:
        torch.ops.sheaf.reduce_scatter_sized(y, sizes, 0, 0, world, "sum", group.group_name, origin=1)
    same(sheaf.all_gather(torch.ones(1), group=group).tensor, torch.ones(world), "the group works on")
    return str(caught.value)


def test_ranks_that_refuse_together_say_the_same_across_hosts():
    said = values(fresh(3, refused_by_all, env={"SHEAF_ENGINE": "collectives"}, timeout=60))
    assert len(set(said)) == 1 and "rank 2 refuses" in said[0], said


def leaves_out_a_compiled_backward(rank, world):
    """A gather that differentiates a sum, and which rank 1 leaves out: across hosts it has a header, as others have."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    group = dist.new_group()
    y = torch.ones(2 * world, 3, requires_grad=True)
    name, sizes = group.group_name, [2] * world
    mine = torch.compile(lambda y: sheaf.reduce_scatter(y, sizes, group=name), fullgraph=True, backend="aot_eager")(y)
    with pytest.raises(ValueError, match="rank 1 has left out the backward of #1:"):
        sheaf.all_gather(y.detach(), group=group) if rank == 1 else mine.sum().backward()
    same(sheaf.all_gather(y.detach()[:1], group=group).tensor, torch.ones(world, 3), "the group works on")


def test_a_rank_that_leaves_out_a_compiled_backward_is_named_across_hosts():
    values(fresh(3, leaves_out_a_compiled_backward, env={"SHEAF_ENGINE": "collectives"}, timeout=60))


def interrupted(rank, world):
    """Rank 0 is interrupted in a call that has not had its turn yet."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    x = torch.ones(2)
    sheaf.all_gather(x, sizes=[2, 2], async_op=True).wait()
    if rank == 1:
        time.sleep(1.5)
        return [sheaf.all_gather(x, sizes=[2, 2], async_op=True).wait().tensor.tolist()]
    before = sheaf.all_gather(x, sizes=[2, 2], async_op=True)
    threading.Timer(0.5, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        sheaf.all_gather(x, sizes=[2, 2])
    return [before.wait().tensor.tolist(), told(lambda: sheaf.all_gather(x, sizes=[2, 2]))]


def test_a_rank_that_was_interrupted_before_its_turn_is_out_of_step():
    said = values(fresh(2, interrupted, env={"SHEAF_ENGINE": "collectives"}, timeout=60))
    assert [one[0] for one in said] == [[1.0] * 4] * 2, said
    assert "is out of step since all_gather #3" in said[0][1], said


def late_at_first(rank, world):
    """Rank 1 misses the group's first call: nobody has moved anything before ranks have met."""
    group = dist.new_group()
    x = torch.ones(2)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="rank 1"):
            sheaf.all_gather(x, sizes=[2, 2], group=group, timeout=0.5)
    dist.barrier()
    if rank == 1:
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            sheaf.all_gather(x, sizes=[2, 2], group=group, timeout=0.5)
    dist.barrier()
    same(sheaf.all_gather(x, sizes=[2, 2], group=group).tensor, torch.ones(4), "the group works")


def test_a_group_whose_first_call_was_missed_works():
    values(fresh(2, late_at_first, env={"SHEAF_ENGINE": "collectives"}, timeout=60))


WITH_HEADERS = {
    "all_gather": lambda x, group: sheaf.all_gather(x, group=group, timeout=0.3),
    "all_gather_coalesced": lambda x, group: sheaf.all_gather_coalesced([x, x], group=group, timeout=0.3),
    "gather_sizes": lambda x, group: sheaf.gather_sizes(x, group=group, timeout=0.3),
    "valid": lambda x, group: sheaf.all_gather(x, group=group, valid=torch.tensor(1), timeout=0.3),
    "compiled": torch.compile(
        lambda x, group: sheaf.all_gather(x, group=group.group_name, timeout=0.3), backend="aot_eager", fullgraph=True
    ),
}


def waits_in_vain(rank, world):
    """Ranks on hosts of their own. Rank 1 does not come to calls with headers; what rank 0's next call is told."""
    os.environ["SHEAF_HOST_ID"] = str(rank)
    said = {}
    for name, way in WITH_HEADERS.items():
        group = dist.new_group()
        sheaf.all_gather(torch.ones(2), group=group)
        if rank == 0:
            with pytest.raises(dist.DistBackendError, match="no answer from rank 1"):
                way(torch.ones(2), group)
            said[name] = told(lambda group=group: sheaf.all_gather(torch.ones(2), sizes=[2, 2], group=group, timeout=1))
        dist.barrier()
    return said


def test_a_rank_that_gave_up_waiting_is_out_of_step():
    """A late rank would find its header, and take its next call's data for this one's."""
    said, _ = values(fresh(2, waits_in_vain, env={"SHEAF_ENGINE": "collectives"}, timeout=60))
    assert said.keys() == WITH_HEADERS.keys()
    for name, text in said.items():
        since = "all_gather" if name in ("valid", "compiled") else name
        assert f"is out of step since {since} #2" in text, (name, text)


def late_for_sizes(rank, world):
    """On one host every call has headers: nothing is taken for what it is not."""
    x = torch.ones(2)
    sheaf.all_gather(x)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="no answer from rank 1"):
            sheaf.gather_sizes(x, timeout=0.3)
    dist.barrier()
    if rank == 1:
        assert sheaf.gather_sizes(x).tolist() == [2, 2]
    same(sheaf.all_gather(x).tensor, torch.ones(4), "the group works")


def test_a_rank_that_gave_up_sizes_is_in_step_on_one_host():
    values(fresh(2, late_for_sizes, env={"SHEAF_ENGINE": "collectives"}))


def described(rank, world):
    return sheaf.engine().cpu


def test_engine_says_so():
    assert set(run(3, described)) == {"collectives of gloo (SHEAF_ENGINE=collectives)"}


@pytest.mark.parametrize("case", missed_cases.MISSED)
def test_ranks_that_missed_a_call_of_several_steps_are_in_step_at_the_next(case):
    run(3, case, "cpu", timeout=120)


def test_mistakes_with_static_shapes():
    said = run(3, static_cases.static_mistakes, "cpu")
    for texts in said:
        for text, expected in zip(texts, static_cases.MISTAKES, strict=True):
            assert expected in text, texts
