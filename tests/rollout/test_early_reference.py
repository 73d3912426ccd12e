"""Groups that the reference reads while others generate: the same rows in the same parts, whatever the order."""

import asyncio
import dataclasses
import itertools
import random
import threading

import pytest
import torch

from corerl.batch.rollouts import Branch, Episode
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.token_outputs import TokenOutputs
from corerl.errors import RunError
from corerl.rollout.scored import ScoredRollouts
from corerl_torch.early_reference import PartwiseReference
from streams import Engine


class Reference:
    """The log-prob of a token is minus its id, and minus a hundredth of the rows beside it: parts are told apart."""

    def __init__(self):
        self.read, self.rows, self.open, self.fails = [], [], threading.Event(), False
        self.open.set()

    def forward(self, batch, wanted):
        assert wanted == ["log_probs"]
        assert self.open.wait(10)
        if self.fails:
            raise RunError("no memory")
        real = torch.arange(batch.response_mask.shape[1]) < batch.response_lengths[:, None]
        prompts = batch.input_ids.gather(1, batch.prompt_lengths[:, None] - 1).squeeze(1)
        self.read.append(prompts.unique().tolist())
        self.rows.append(len(batch))
        steps = torch.arange(real.shape[1])
        tokens = batch.input_ids.gather(
            1, (batch.prompt_lengths[:, None] + steps).clamp(max=len(batch.input_ids[0]) - 1)
        )
        return TokenOutputs(log_probs=torch.where(real, -tokens - len(batch) / 100, 0.0))


@pytest.fixture
def early():
    """``early(groups, parts)``, which reads by ``Reference``, its attribute ``reference``."""
    made = []

    def make(groups, parts):
        reference = Reference()
        made.append(PartwiseReference(reference, groups, parts))
        made[-1].reference = reference
        return made[-1]

    yield make
    for each in made:
        each.reference.open.set()
        each.close()


def log_probs(reading, taken):
    """Of a step's rows: prompt of each, response tokens, log-probs."""
    batch = taken.scored.experience()
    found = reading.forward(batch.tokens(), ["log_probs"]).log_probs
    prompts = [prompt.token_ids[1] for prompt in taken.scored.rollouts.prompts]
    return list(zip(prompts, found.tolist(), strict=True))


@pytest.mark.parametrize("parts", [1, 2, 3, 6, 9])
def test_the_order_in_which_responses_come_changes_no_bit(stream, early, parts):
    draw, prompt, late = random.Random(0), Engine(), Engine()
    late.seconds = {token: 0.05 * draw.random() for token in range(1, 13)}
    readings = early(6, parts), early(6, parts)
    made = [
        stream(engine, size=6, on_finished=reading.finished)
        for engine, reading in zip((prompt, late), readings, strict=True)
    ]
    for step in (1, 2, 3):
        prompt.version = late.version = step - 1
        one, two = (log_probs(*each) for each in zip(readings, (each.take(step) for each in made), strict=True))
        assert one == two
        rows = 12 // min(parts, 6)
        wanted = [-token - rows / 100 for token, _ in one]
        assert [values[0] for _, values in one] == pytest.approx(wanted)
    of_steps = [sorted(map(tuple, reading.reference.read)) for reading in readings]
    assert of_steps[0] == of_steps[1] and len(of_steps[0]) == 3 * min(parts, 6)


def test_a_part_is_read_while_other_groups_generate(stream, early):
    class Waiting(Engine):
        async def generate(self, requests, on_finished):
            if requests[0].prompt_ids[1] == 4:
                for _ in range(500):
                    if reading.reference.read:
                        break
                    await asyncio.sleep(0.01)
                seen.extend(reading.reference.read)
            await super().generate(requests, on_finished)

    reading, seen = early(4, 2), []
    taken = stream(Waiting(), size=4, most=2, on_finished=reading.finished).take(1)
    assert seen == [[1, 2]]
    found = [values for _, values in log_probs(reading, taken)]
    assert found[:2] == [pytest.approx([-1.04, -0.04]), pytest.approx([-1.04, -1.04])]
    assert reading.reference.read == [[1, 2], [3, 4]] and reading.seconds > 0


def test_parts_after_a_group_that_is_dropped_are_read_again_with_their_own_groups(stream, early):
    def keep(inputs):
        return torch.full_like(inputs.scores, inputs.scores[0] // 100 != 2, dtype=torch.bool)

    reading = early(4, 2)
    taken = stream(Engine({2: 0.2}), size=4, keep=keep, on_finished=reading.finished).take(1)
    found = log_probs(reading, taken)
    assert [token for token, _ in found][::2] == [1, 3, 4, 5]
    assert [values[0] for _, values in found] == pytest.approx([-token - 0.04 for token, _ in found])
    assert sorted(reading.reference.read)[0] == [1, 3] and [4, 5] in reading.reference.read


def test_an_error_of_the_model_is_the_step_s_error_and_the_next_step_reads_anew(stream, early):
    reading, engine = early(2, 2), Engine()
    made = stream(engine, on_finished=reading.finished)
    reading.reference.fails = True
    taken = made.take(1)
    with pytest.raises(RunError, match="no memory"):
        log_probs(reading, taken)
    reading.reference.fails, engine.version = False, 1
    assert [token for token, _ in log_probs(reading, made.take(2))] == [3, 3, 4, 4]


def test_the_end_of_a_run_waits_for_the_part_that_is_read_and_reads_no_other(stream):
    reference = Reference()
    reading = PartwiseReference(reference, 4, 4)
    reference.open.clear()
    stream(size=4, on_finished=reading.finished).take(1)
    ending = threading.Thread(target=reading.close)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    reference.open.set()
    ending.join(10)
    assert not ending.is_alive() and len(reference.read) == 1


def test_branches_of_episodes_have_the_log_probs_of_their_own_tokens(scored_rollouts, early):
    """Rows of branches are behind those of all responses of the step, and in a part behind those of the part."""

    def group(first, branches):
        scored = scored_rollouts([0.5, 1.0], n=2, lengths=[3, 1])
        token = itertools.count(first)
        own = [
            Branch((1, 9), Completion([next(token), next(token)], [-0.5, -0.5], "stop", 0), [True, True], [1, 1])
            for _ in range(branches)
        ]
        episodes = [Episode([True] * 3, turn_ids=[0, 0, 0], branches=own), Episode([True], turn_ids=[0])]
        completions = [
            dataclasses.replace(each, token_ids=[next(token) for _ in each.token_ids])
            for each in scored.rollouts.completions
        ]
        rollouts = dataclasses.replace(scored.rollouts, completions=completions, episodes=episodes)
        return dataclasses.replace(scored, rollouts=rollouts)

    groups = [group(10, 1), group(30, 0), group(50, 3), group(70, 2)]
    reading = early(4, 2)
    reading.finished([None, *groups[1:]])
    reading.finished(groups)
    batch = ScoredRollouts.join(groups).experience()
    found = reading.forward(batch.tokens(), ["log_probs"]).log_probs
    assert sorted(reading.reference.rows) == [5, 9]
    whole = Reference().forward(batch.tokens(), ["log_probs"]).log_probs
    assert len(batch) == 14 and found.round().tolist() == whole.round().tolist()
