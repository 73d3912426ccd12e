"""Groups of a run that goes on from its state."""

import dataclasses
import random
import time
from collections import Counter

import pytest

from corerl.batch.rollouts import Episode
from corerl.data.sampler import PromptSampler
from corerl_tools.finished_groups import read_groups, write_groups
from streams import PROMPTS, Engine, tokens


def test_a_run_that_goes_on_trains_the_groups_that_were_overtaken(stream):
    engine = Engine({2: 0.6})
    made = stream(engine, max_staleness=1)
    assert tokens(made.take(1)) == [1, 3]
    state = made.state()
    assert (state.sampler["next"], state.sampler["done"]) == (1, [2])
    engine = Engine()
    resumed = stream(engine, max_staleness=1, state=state)
    for engine.version, trained in ((1, [2, 4]), (2, [5, 6])):
        assert tokens(resumed.take(engine.version + 1)) == trained


@pytest.mark.parametrize("order", ["fifo", "windowed", "first_finished"])
def test_no_group_is_trained_twice_or_lost_however_often_a_run_goes_on_from_its_state(stream, order, tmp_path):
    """Every step is the last of a life; finished groups are not played again."""
    draw, trained, restored, finished = random.Random(2), Counter(), 0, set()
    state = None
    for step in range(1, 19):
        engine = Engine({token: 0.05 * draw.random() for token in range(1, 13)})
        engine.version = step - 1
        made = stream(engine, max_staleness=2, batch_order=order, total_steps=18, state=state)
        taken = made.take(step)
        trained.update(tokens(taken))
        assert taken.metrics["training/staleness/max"] <= 2
        time.sleep(0.03)
        state = made.state()
        made.close()
        assert not finished & {name for name, _ in engine.asked}
        finished = {f"train-{group.number}" for group in state.finished}
        write_groups(tmp_path / "groups.parquet", state.finished)
        sampler = PromptSampler(PROMPTS, 2, shuffle=False, seed=0)
        sampler.load_state_dict(state.sampler)
        groups = read_groups(tmp_path / "groups.parquet", made.prompts, sampler)
        assert groups == sorted(state.finished, key=lambda group: group.number)
        (tmp_path / "groups.parquet").unlink(missing_ok=True)
        state = dataclasses.replace(state, finished=groups)
        restored += len(finished)
    assert set(trained.values()) == {3} and len(trained) == PROMPTS
    assert restored > 18, "groups that need not be played again"


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_groups_that_are_too_old_for_a_smaller_staleness_are_generated_again(stream, max_staleness, capsys):
    engine = Engine()
    made = stream(engine, max_staleness=2)
    made.take(1)
    while len((state := made.state()).finished) < 4:
        time.sleep(0.01)
    engine = Engine()
    resumed = stream(engine, max_staleness=max_staleness, state=state)
    trained = []
    for engine.version in (1, 2, 3):
        taken = resumed.take(engine.version + 1)
        assert taken.metrics["training/staleness/max"] <= max_staleness
        trained += tokens(taken)
    assert sorted(trained) == [3, 4, 5, 6, 7, 8]
    left = {0: 4, 1: 2}[max_staleness]
    assert sum(name in ("train-2", "train-3", "train-4", "train-5") for name, _ in engine.asked) == left
    assert f"{left} finished groups of the checkpoint do not fit this run" in capsys.readouterr().err


def altered(group, *, rows=2, episodes=None, baseline=None, **changes):
    """A finished group with other responses."""
    rollouts = group.scored.rollouts
    completions = [dataclasses.replace(each, **changes) for each in rollouts.completions][:rows]
    lists = {"prompts": rollouts.prompts[:rows], "responses": rollouts.responses[:rows], "group_ids": [0] * rows}
    rollouts = dataclasses.replace(rollouts, completions=completions, episodes=episodes, **lists)
    scored = dataclasses.replace(group.scored, rollouts=rollouts, results=group.scored.results[:rows])
    return dataclasses.replace(group, scored=scored, baseline=baseline)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight_version": 2},
        {"updates": ((1, 2),)},
        {"token_ids": [3, 100]},
        {"token_ids": [1] * 7, "log_probs": [-1.0] * 7},
        {"rows": 1},
        {"episodes": [Episode([True, True])] * 2},
        {"baseline": True},
    ],
    ids=str,
)
def test_groups_of_a_checkpoint_that_this_run_could_not_have_generated_are_generated_again(stream, changes, capsys):
    made = stream(Engine(), max_staleness=1)
    made.take(1)
    while len((state := made.state()).finished) < 2:
        time.sleep(0.01)
    first, second = state.finished
    changes = changes | ({"baseline": first.scored} if "baseline" in changes else {})
    engine = Engine()
    engine.version = 1
    resumed = stream(
        engine, max_staleness=1, state=dataclasses.replace(state, finished=[altered(first, **changes), second])
    )
    assert tokens(resumed.take(2)) == [3, 4]
    assert f"train-{first.number}" in {name for name, _ in engine.asked}
    assert f"train-{second.number}" not in {name for name, _ in engine.asked}
    assert "1 finished groups of the checkpoint do not fit this run" in capsys.readouterr().err
