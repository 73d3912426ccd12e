"""Calls on two workers; test_shares.py splits batches among up to six."""

import dataclasses
import os
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
from ray_toys import LONE, TOY, Pair, Toy, WithTorch, each, kept_rows

from corerl.contracts.experience import collate
from corerl.errors import ConfigError, NonFiniteError
from corerl_ray.calls import Call
from corerl_ray.group import Pending, SharedGpus

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once

LENGTHS = [9, 1, 4, 6, 2]


@pytest.fixture(scope="module")
def group(groups):
    return groups[0]


@pytest.fixture
def batch():
    """Row i begins with the token i."""
    return collate([[row] for row in range(5)], [[7] * length for length in LENGTHS], [0, 0, 0, 1, 1])


@pytest.fixture
def size(group):
    each(group, "seen")
    return len(group.members)


def test_all_ranks_are_called_and_the_result_is_that_of_rank_0(group, size):
    assert group.all_ranks("x") == (0, "x")
    assert each(group, "seen") == [["x"]] * size


def test_rank_0_alone_is_called(group, size):
    assert group.rank_zero() == 0
    assert each(group, "seen") == [["alone"]] + [[]] * (size - 1)


def test_a_batch_is_split_by_rows_and_its_outputs_are_put_together(group, size, batch):
    outputs = group.forward(batch, ["log_probs", "values"])
    for row, length in enumerate(LENGTHS):
        expected = [10.0 * row + step for step in range(length)] + [0.0] * (9 - length)
        assert outputs.log_probs[row].tolist() == outputs.values[row].tolist() == expected
    shares = [rows for [rows] in each(group, "seen")]
    assert sorted(chain.from_iterable(shares)) == list(range(5))
    tokens = [sum(LENGTHS[row] + 1 for row in rows) for rows in shares]
    assert max(tokens) <= 14


def test_fewer_rows_than_ranks_give_fillers_that_come_back_nowhere(group, size, batch):
    outputs = group.forward(batch.select(torch.tensor([3])), wanted=["log_probs"])
    assert outputs.log_probs.tolist() == [[30.0 + step for step in range(6)]]
    assert each(group, "seen") == [[[3]]] * size


@pytest.mark.parametrize("shards", [[], [[0, 1, 2], [3, 4]], [[4, 1], [0, 3, 2]]], ids=["one", "two", "mixed"])
def test_rows_that_workers_keep_reach_all_workers_and_their_outputs_stay_for_them(group, batch, shards):
    kept = kept_rows(group, batch, *shards)
    assert torch.equal(kept.numbers().lengths, batch.lengths)
    for given, expected in ((kept, batch), (kept.select(chosen := torch.tensor([3, 1])), batch.select(chosen))):
        outputs = group.forward(given, ["log_probs"])
        assert not hasattr(outputs, "log_probs")
        whole = group.forward(expected, ["log_probs"]).log_probs
        assert group.read(outputs) == whole.tolist()
        for own in (torch.arange(len(expected)), torch.tensor([1]), torch.tensor([1, 0])):
            assert group.read(outputs.of(own)) == whole[own].tolist()
        assert group.update(given)["weight"] == 7.0
    with pytest.raises(NonFiniteError) as caught:
        group.update(kept, bad={1, 4})
    assert set(caught.value.rows) == {1, 4}


def test_who_worked_last_on_shared_gpus_gives_back_what_it_keeps_there(group, batch):
    shared = SharedGpus()
    first, second = (dataclasses.replace(group, shared_gpus=shared) for _ in range(2))
    for one in (first, first, second):
        one.forward(batch, ["values"])
    assert [calls.count("freed") for calls in each(group, "seen")] == [1] * len(group.members)


def test_metrics_that_all_ranks_return_are_those_of_rank_0(group, batch):
    assert group.update(batch) == {"weight": 7.0, "rank": 0}


@pytest.mark.parametrize("bad", [{0}, {4}, {1, 2, 3}])
def test_rows_that_are_not_finite_are_rows_of_the_mini_batch(group, batch, bad):
    with pytest.raises(NonFiniteError) as caught:
        group.update(batch, bad=bad)
    assert set(caught.value.rows) == bad
    assert group.update(batch)["weight"] == 7.0  # the group goes on


def test_calls_overlap(group, size):
    futures = [group.all_ranks.submit(number) for number in range(3)]
    assert [future.result() for future in futures] == [(0, 0), (0, 1), (0, 2)]
    assert futures[1].result() == (0, 1)


def test_a_call_may_be_over_long_before_its_caller_waits():
    waiter = SimpleNamespace(wait=lambda calls, deadline, what: [deadline - time.monotonic()])
    assert Pending(waiter, [], "the rows", time.monotonic() - 3600, lambda results: results[0]).result() > 0


def test_a_thousand_results_are_gathered_in_a_few_looks(group, monkeypatch):
    calls = [Call(group.members[0], ray.put(number)) for number in range(1024)]
    looks = []

    def wait(references, **options):
        looks.append(len(references))
        return ray_wait(references, **options)

    ray_wait = ray.wait
    monkeypatch.setattr(ray, "wait", wait)
    assert group.waiter.wait(calls, time.monotonic() + 60, "the results") == list(range(1024))
    assert sum(looks) <= 4 * 1024


def test_a_worker_knows_its_rank_and_gets_the_environment_and_the_folder(group, size):
    found = each(group, "environment")
    assert [(one["RANK"], one["LOCAL_RANK"], one["WORLD_SIZE"]) for one in found] == [
        (str(rank), str(rank), str(size)) for rank in range(size)
    ]
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found}) == 1
    assert int(found[0]["MASTER_PORT"]) > 0
    for one in found:
        assert one["CORERL_TOY"] == "carried" and one["folder"] == str(Path.cwd())
        assert one["OMP_NUM_THREADS"] == str(max(1, torch.get_num_threads() // size))
    assert len({one["pid"] for one in found} | {os.getpid()}) == size + 1


def test_a_method_without_a_mode_is_refused(group):
    with pytest.raises(AttributeError, match=r"Toy\.unmarked cannot be called on a group"):
        group.unmarked()


def test_peers_of_one_data_parallel_rank_get_the_same_share(start):
    group = start(workers=4).spawn(TOY, Pair)
    assert group.doubled(list(range(5))) == [0, 2, 4, 6, 8]
    shares = [numbers for [numbers] in each(group, "seen")]
    assert shares[0] == shares[1] and shares[2] == shares[3]
    assert sorted(shares[0] + shares[2]) == list(range(5))


def test_a_model_with_ranks_of_its_own_number_gets_all_rows_once(start, batch):
    runtime = start(workers=1, ranks={"critic": 2}, apart=["critic"])
    group = runtime.spawn(dataclasses.replace(TOY, name="critic"), Toy)
    group.forward(batch, ["values"])
    shares = [rows for [rows] in each(group, "seen")]
    assert len(shares) == 2 and sorted(chain.from_iterable(shares)) == list(range(5))
    assert (len(runtime.pools.of("actor")), len(runtime.pools.of("critic"))) == (1, 2)


def test_fewer_ranks_use_the_first_places_and_more_than_places_are_refused(start):
    pools = start(workers=2, ranks={"critic": 3, "ref": 1}).pools
    assert pools.of("ref").nodes == pools.of("actor").nodes[:1] and pools.of("ref").group == pools.of("actor").group
    message = r"^runtime.options.ranks.critic: 3 ranks do not fit the 2 places of runtime.options.workers: name critic"
    with pytest.raises(ConfigError, match=message):
        pools.reserve([TOY])


def test_several_workers_of_a_part_that_is_one_process_are_refused(start):
    with pytest.raises(
        ConfigError, match=r"^actor.strategy: 'lone' runs in one process, .* would start 2 actor workers"
    ):
        start(workers=2).spawn(LONE, Toy)
    assert start().spawn(LONE, Toy).rank_zero() == 0


def test_what_comes_back_is_read_where_it_lies_and_may_be_written(start):
    group = start().spawn(TOY, WithTorch)
    batch = collate([[1]] * 64, [[7] * 4096] * 64, [0] * 64, log_probs=[[0.5] * 4096] * 64)
    result = group.echo(batch).log_probs
    assert torch.equal(result, batch.rollout_log_probs)
    result.masked_fill_(result > 0, 0.0)
    assert not result.any()


@ray.remote(num_cpus=0)
class Stranger:
    def ask(self):
        return 1


def test_calls_leave_no_events_in_the_gcs_which_would_grow_with_them(group, size):
    group.all_ranks("x")
    ray.get(Stranger.remote().ask.remote())  # after the calls: once its event is there, theirs would be
    deadline = time.monotonic() + 60
    while "ask" not in (names := {event["name"] for event in ray.timeline()}) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "ask" in names and "call" not in names
