"""The seconds of a step by its parts, and those at the peak of the devices, by hand."""

import pytest

from corerl_tools.report.seconds import at_peak, mean_seconds, seconds_lines


def step(number, **changed):
    """12 s: update 6 s at half of the peak, so 3 s at the peak, and 1 s for each forward pass of the same tokens."""
    record = {"step": number, "timing_s/step": 12.0, "timing_s/gen": 4.0, "timing_s/ref": 1.5}
    record |= {"timing_s/update_actor": 6.0, "timing_s/update_weights": 0.01, "perf/mfu/actor": 0.5}
    record |= {"prompt_length/mean": 100.0, "response_length/mean": 300.0}
    return record | changed


SLOW = step(1, **{"timing_s/step": 100.0, "timing_s/gen": 92.0})


def test_the_first_step_is_left_out_and_small_parts_are_others():
    took, peak = seconds_lines([{"step": 0, "timing_s/testing": 9.0}, SLOW, step(2), step(3)], {})
    assert took == (
        "timing_s/step: 12.00 s, mean of steps 2 to 3: update_actor 6.00 (50%), gen 4.00 (33%), ref 1.50 (12%), "
        "other 0.50 (4%)"
    )
    assert peak == (
        "perf/mfu/actor: 0.50; these parts at the peak of the devices' matrix products: update_actor 3.00, ref 1.00, "
        "gen 0.75; 4.75 of 11.50 s"
    )


def test_the_only_step_is_named_and_without_a_known_peak_there_is_no_second_line():
    del (record := step(1))["perf/mfu/actor"]
    [line] = seconds_lines([record], {})
    assert line.startswith("timing_s/step: 12.00 s, step 1: update_actor 6.00 (50%)")
    assert seconds_lines([{"step": 0}], {}) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"actor.ppo_epochs": "2"}, {"update_actor": 3.0, "ref": 0.5, "gen": 0.375}),
        ({"ref.path": "larger"}, {"update_actor": 3.0, "gen": 0.75}),
        ({"ref.path": "null", "runtime.n_gpus_per_node": "8"}, {"update_actor": 3.0, "ref": 1.0, "gen": 0.75}),
        (
            {"runtime.nnodes": "2", "runtime.n_gpus_per_node": "8", "rollout.n_gpus_per_node": "4"},
            {"update_actor": 3.0, "ref": 1.0, "gen": 3.0},
        ),
    ],
    ids=["epochs", "another reference", "same devices", "16 train and 4 generate"],
)
def test_the_peak_of_parts_follows_from_the_update_and_the_devices(settings, expected):
    assert at_peak([step(2), step(3)], settings) == pytest.approx(expected)


def test_a_reference_that_reads_during_generation_has_no_peak_of_its_own():
    early = step(2, **{"timing_background_s/ref": 1.5, "timing_s/ref": 0.2})
    assert at_peak([early], {}) == pytest.approx({"update_actor": 3.0, "gen": 0.75})


def test_parts_that_some_steps_lack_are_means_over_all_steps_and_numbers_that_are_none_are_left_out():
    evaluated = step(3, **{"timing_s/step": 14.0, "timing_s/old_log_prob": 2.0, "perf/mfu/actor": float("nan")})
    line, peak = seconds_lines([SLOW, step(2), evaluated], {})
    assert "13.00 s" in line and "old_log_prob 1.00" in line
    assert "perf/mfu/actor: 0.50;" in peak and "update_actor 3.00, old_log_prob 1.00, ref 1.00" in peak


def test_a_part_of_a_few_steps_has_its_share_of_all_of_them():
    """Not the mean of the steps that have the part; evaluation before training is no part of a step."""
    found = mean_seconds([{"step": 0, "timing_s/testing": 9.0}, SLOW, step(2), step(3, **{"timing_s/save": 2.0})])
    assert found["save"] == 1.0 and found["step"] == 12.0 and "testing" not in found
    assert mean_seconds([{"step": 0, "timing_s/testing": 9.0}]) == {}
