"""Relays between the controller and the ranks: results and errors are those of direct calls."""

import dataclasses
import os
import signal
import time

import pytest
import torch
from ray_toys import TOY, Pair, Toy, each, kept_rows

from corerl.contracts.experience import collate
from corerl.errors import ConfigError, DeadlineError, NonFiniteError, RunError, WorkerDiedError
from corerl_ray import relay
from corerl_ray.relay import Relays

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once

chaos = pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="starts four workers for each error")
LENGTHS = [9, 1, 4, 6, 2]


@pytest.fixture
def batch():
    """Row i begins with the token i."""
    return collate([[row] for row in range(5)], [[7] * length for length in LENGTHS], [0, 0, 0, 1, 1])


def test_ranks_behind_a_relay_are_called_as_ranks_without(groups, relayed, batch):
    same(groups[0], relayed, batch)


def same(direct, relayed, batch):
    """Results and arguments of calls with and without relays."""
    chosen = batch.select(torch.tensor([3]))  # a rank gets a filler
    assert not direct.relays.members  # it is small
    each(direct, "seen")
    seen = []
    for group in (direct, relayed):
        kept, parts = kept_rows(group, batch), kept_rows(direct, batch, [4, 1], [0, 3, 2])
        outputs = [
            group.all_ranks("x"),
            group.rank_zero(),
            [group.forward(rows, ["log_probs"]).log_probs.tolist() for rows in (batch, chosen)],
            [
                group.read(group.forward(rows, ["values", "log_probs"]))
                for rows in (kept, kept.select(torch.tensor([3, 1])), parts, parts.select(torch.tensor([3, 1])))
            ],
            [group.update(rows) for rows in (batch, kept, parts)],
            [group.doubled(list(range(count))) for count in (5, 1, 0)],
            [future.result() for future in [group.all_ranks.submit(number) for number in range(3)]],
        ]
        for rows in (batch, kept, parts):
            with pytest.raises(NonFiniteError) as caught:
                group.update(rows, bad={1, 4})
            outputs.append((str(caught.value), caught.value.rows))
        seen.append((outputs, each(direct, "seen")))
    assert seen[0] == seen[1]


@pytest.fixture
def four(start, monkeypatch):
    """Start four ranks behind two relays."""
    monkeypatch.setattr(relay, "MOST", 2)

    def started(worker=Toy, **options):
        return start(workers=4, relay_ranks=4, **options).spawn(TOY, worker)

    return started


@chaos
def test_ranks_behind_two_relays_are_called_as_ranks_without(four, batch):
    group = four()
    assert [str(one) for one in group.relays.members] == [
        f"relay of the actor workers {first} to {first + 1} of 4" for first in (0, 2)
    ]
    same(dataclasses.replace(group, relays=Relays()), group, batch)


@chaos
def test_peers_of_one_data_parallel_rank_get_the_same_share_through_relays(four, monkeypatch):
    monkeypatch.setattr(relay, "MOST", 3)  # no relay has all peers of each rank
    group = four(Pair)
    assert group.doubled(list(range(5))) == [0, 2, 4, 6, 8]
    shares = [numbers for [numbers] in each(group, "seen")]
    assert shares[0] == shares[1] and shares[2] == shares[3]


@chaos
@pytest.mark.parametrize("how", ["config", "bug", "kill", "exit"])
def test_an_error_of_a_rank_behind_a_relay_is_reported_at_once_while_the_others_wait(four, how):
    group = four()
    began = time.monotonic()
    with pytest.raises((RunError, ConfigError)) as relayed:
        group.fail(3, how)
    assert time.monotonic() - began < 60  # of 600
    pid = group.members[3].facts.pid
    died = f"the actor worker 3 of 4 (process {pid} on {group.members[3].facts.address}) died:"
    expected = {
        "config": "actor worker 3 of 4: rollout.n: is wrong",
        "bug": "actor worker 3 of 4: KeyError: 'missing' (",
        "kill": f"{died} killed (SIGKILL, ",
        "exit": f"{died} it exited with code 7",
    }
    assert str(relayed.value).startswith(expected[how])


@chaos
def test_a_deadline_names_the_ranks_behind_relays_that_have_not_answered(four):
    group = four(timeout=3)
    with pytest.raises(
        DeadlineError, match=r"^actor.sleep_on \(runtime.options.timeout\) took longer than 3 s: no an"
    ) as late:
        group.sleep_on([1, 2], 600)
    assert [name for name in map("actor worker {} of 4".format, range(4)) if name in str(late.value)] == [
        "actor worker 1 of 4",
        "actor worker 2 of 4",
    ]


@chaos
def test_a_dead_relay_ends_the_call_and_is_named(four):
    group = four()
    future = group.sleep.submit(600)
    pid = group.relays.members[1].facts.pid
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(
        WorkerDiedError, match=rf"^the relay of the actor workers 2 to 3 of 4 \(process {pid} on .*\) died: k"
    ):
        future.result()
    assert time.monotonic() - began < 60  # of 600


@chaos
def test_a_stopped_relay_is_noticed(four):
    group = four(hang_timeout=4)
    os.kill(group.relays.members[0].facts.pid, signal.SIGSTOP)
    with pytest.raises(
        RunError, match=r"^the relay of the actor workers 0 to 1 .* gives no sign of life for 4 s: it is st"
    ):
        group.sleep(600)


@chaos
def test_a_dead_rank_is_named_before_its_relay_as_after_the_loss_of_a_machine(four):
    group = four()
    future = group.sleep.submit(600)
    for pid in (group.relays.members[1].facts.pid, group.members[2].facts.pid):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"^the actor worker 2 of 4 .* died"):
        future.result()
