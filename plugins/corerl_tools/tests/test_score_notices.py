"""Notices about scores: errors, equal rewards, responses that have nothing to compare with."""

from types import SimpleNamespace

import pytest

from corerl.batch.rollouts import Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.registry import Entry, Owner, Registries, Selected
from corerl.rollout.scored import ScoredRollouts
from corerl_tools.plugin import batch_scored
from corerl_tools.score_notices import Notices

SCORERS = {"acme/sums": Selected(Entry("scorer", "sums", lambda *_: 0.0, Owner("acme-rewards", "1.2")))}


def scorers(sources):
    return SCORERS


def rollouts(count=2):
    prompts = [Prompt(index, (1, 2), [], "acme/sums", "42", {}) for index in range(count)]
    outputs = [[Completion((3, 4), (-0.1, -0.2), "stop", 0), Completion((5,), (-0.3,), "length", 0)] for _ in prompts]
    return Rollouts.collect(prompts, outputs, lambda ids: [f"tokens {list(map(int, row))}" for row in ids])


def test_the_notice_of_lone_responses_counts_prompts():
    batch = ScoredRollouts(rollouts(2), [RewardResult(1.0), RewardResult(None, error="x"), *[RewardResult(0.0)] * 2])
    assert (
        Notices(scorers)
        .lone_responses(batch.experience().numbers())
        .startswith("1 prompts have one response with a score")
    )
    assert (
        Notices(scorers).lone_responses(ScoredRollouts(rollouts(1), [RewardResult(0.0)] * 2).experience().numbers())
        is None
    )


@pytest.mark.parametrize("score", [0.0, 1.0, -0.5])
def test_the_notice_of_equal_rewards_names_source_scorer_and_three_extractions(score):
    results = [RewardResult(score, extracted=str(number)) for number in range(8)]
    notices = Notices(scorers)
    notice = notices.all_equal(rollouts(4), results)
    assert notice.startswith(f"every reward in this step is {score:g}\n")
    assert "data source 'acme/sums' (8 responses) is scored by 'sums' of acme-rewards 1.2" in notice
    assert [f"extracted '{number}', ground truth '42'" in notice for number in range(6)] == [True, False] * 3
    assert notice.count("extracted ") == 3
    assert notices.all_equal(rollouts(4), results) == f"every reward in this step is {score:g}, as in 2 steps so far"
    assert notices.all_equal(rollouts(4), [RewardResult(7.0)] * 8).count("extracted ") == 3


@pytest.mark.parametrize("score", [1.0, None])
def test_no_notice_when_a_reward_differs_or_is_missing(score):
    results = [RewardResult(0.0)] * 3 + [RewardResult(score, error=None if score else "x")]
    assert Notices(scorers).all_equal(rollouts(), results) is None


def test_a_single_response_is_equal_to_no_other():
    assert Notices(scorers).all_equal(rollouts(1).select([0]), [RewardResult(1.0)]) is None


def test_the_notice_of_errors_counts_the_most_frequent():
    results = [RewardResult(None, error="late"), RewardResult(None, error="boom"), RewardResult(None, error="boom")]
    notice = Notices(scorers).errors([*results, RewardResult(1.0)])
    assert notice.startswith("3 of 4 responses could not be scored") and "2 times: boom" in notice
    assert Notices(scorers).errors([RewardResult(0.0)]) is None


@pytest.mark.parametrize("of_groups", [True, False])
def test_notices_are_about_errors_equal_scores_and_lone_responses_where_groups_are_compared(capsys, of_groups):
    notices = Notices(lambda sources: {}, of_groups=of_groups)

    def show(scores):
        results = [RewardResult(score, error=None if score is not None else "boom") for score in scores]
        scored = ScoredRollouts(rollouts(len(scores) // 2), results)
        notices.print(1, scored.rollouts, scored.results, scored.experience().numbers())

    show([1.0, None, 0.0, 0.5])
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("step 1: 1 of 4 responses could not be scored")
    assert ("step 1: 1 prompts have one response with a score: its advantage is 0" in lines) is of_groups
    show([0.5, 0.5])
    assert capsys.readouterr().err.startswith("step 1: every reward in this step is 0.5\n")


def test_the_hook_counts_the_steps_of_a_run_and_names_its_scorers(tmp_path, capsys):
    entry = SCORERS["acme/sums"]
    run = SimpleNamespace(
        folder=tmp_path,
        parts=SimpleNamespace(
            agent=None,
            scorer=entry,
            scorers={},
            adv_estimator=SimpleNamespace(entry=SimpleNamespace(needs={"groups"})),
        ),
        plugins=SimpleNamespace(registries=Registries()),
    )
    results = [RewardResult(1.0), RewardResult(1.0)]
    scored = ScoredRollouts(rollouts(1), results)
    for step in (1, 2):
        batch_scored(run, step, results, scored.rollouts, scored.experience().numbers())
    first, source, *_, last = capsys.readouterr().err.splitlines()
    assert first == "step 1: every reward in this step is 1"
    assert source.endswith("is scored by 'sums' of acme-rewards 1.2")
    assert last == "step 2: every reward in this step is 1, as in 2 steps so far"
    batch_scored(run, 2, [RewardResult(None, error="boom"), *results], None, None)
    assert capsys.readouterr().err.startswith("step 2, evaluation: 1 of 3 responses could not be scored")


def printed_steps(notices, capsys, results, steps):
    """The steps at which a notice is printed, and the lines."""
    lines = {}
    scored = ScoredRollouts(rollouts(len(results) // 2), results)
    numbers = scored.experience().numbers()
    for step in range(1, steps + 1):
        notices.print(step, scored.rollouts, scored.results, numbers)
        if said := capsys.readouterr().err:
            lines[step] = said
    return lines


POWERS = [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("results", "of_groups"),
    [
        ([RewardResult(0.0)] * 4, False),
        ([RewardResult(1.0), RewardResult(0.0), RewardResult(1.0), RewardResult(None, error="late")], False),
        ([RewardResult(1.0), RewardResult(None, error="late")] * 2, True),
    ],
    ids=["equal", "errors", "lone"],
)
def test_a_notice_of_each_of_185_steps_is_printed_once_and_then_at_growing_distances(capsys, results, of_groups):
    lines = printed_steps(Notices(lambda sources: {}, of_groups=of_groups), capsys, results, 185)
    assert list(lines) == POWERS
    assert "128" in lines[128]  # the number of steps so far


def test_errors_of_another_kind_are_printed_at_once_and_texts_that_differ_at_each_step_are_one_kind(capsys):
    notices, printed = Notices(lambda sources: {}), {}
    for step in range(1, 101):
        kind = "crash" if step == 100 else "timeout"
        notices.print_errors(f"step {step}", [RewardResult(None, error=f"after {step} s", error_kind=kind)])
        printed[step] = capsys.readouterr().err
    assert [step for step, said in printed.items() if said] == [*POWERS[:7], 100]
    assert printed[100] == "step 100: 1 of 1 responses could not be scored and are left out; 1 times: after 100 s\n"
