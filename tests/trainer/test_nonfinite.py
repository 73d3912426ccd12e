"""Rows with a NaN or an infinity."""

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from corerl.errors import NonFiniteError
from corerl.plugins import load_plugins
from corerl.trainer.nonfinite import TOKEN_VALUES, NonFiniteGuard

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def guard(tmp_path):
    return lambda skip=True: NonFiniteGuard(tmp_path / "nonfinite", skip=skip, hook=load_plugins().hook)


@pytest.fixture
def batch(scored_rollouts):
    """``batch(rows)``: responses of two tokens and their tensors, in which every value is 7."""

    def make(rows=3):
        scored = scored_rollouts([1.0] * rows)
        experience = scored.experience()
        for name in TOKEN_VALUES:
            setattr(experience, name, torch.full((rows, 2), 7.0))
        return scored, experience

    return make


@pytest.mark.parametrize("name", TOKEN_VALUES)
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_every_number_of_a_sample_that_is_not_finite_becomes_0_and_those_of_others_stay(guard, batch, name, value):
    scored, experience = batch()
    getattr(experience, name)[1, 0] = value
    assert guard().mask_samples(3, experience, scored) == 1
    assert experience.response_mask.tolist() == [[True, True], [False, False], [True, True]]
    for each in TOKEN_VALUES:
        assert getattr(experience, each).tolist() == [[7.0, 7.0], [0.0, 0.0], [7.0, 7.0]]


def test_numbers_that_are_there_are_enough(guard, batch):
    scored, experience = batch()
    experience.values = experience.returns = None
    experience.rewards[2, 1] = NAN
    assert guard().mask_samples(1, experience, scored) == 1
    assert experience.values is None


def test_a_number_outside_of_the_mask_is_no_reason(guard, batch, tmp_path):
    scored, experience = batch()
    experience.response_mask[1, 0] = False
    experience.old_log_probs[1, 0] = NAN
    assert guard(skip=False).mask_samples(1, experience, scored) == 0
    assert experience.response_mask.sum() == 5
    assert not (tmp_path / "nonfinite").exists()


def test_large_numbers_whose_sum_overflows_are_no_reason(guard, batch):
    scored, experience = batch()
    experience.values.fill_(3e38)
    assert guard(skip=False).mask_samples(1, experience, scored) == 0


def test_the_samples_are_named_and_saved_as_they_were(guard, batch, tmp_path, capsys):
    scored, experience = batch()
    experience.values[2, 1] = INF
    experience.old_log_probs[0, 0] = experience.old_log_probs[2, 0] = NAN
    assert guard().mask_samples(12, experience, scored) == 2
    folder = tmp_path / "nonfinite" / "step_000012"
    assert capsys.readouterr().err == (
        "step 12: not finite: old_log_probs of 2 responses, values of 1 responses; 2 samples (response 0 to prompt 0 "
        f"of 'acme/sums', response 2 to prompt 2 of 'acme/sums') are saved in {folder}\n"
    )
    assert pq.read_table(folder / "rollouts.parquet")["response"].to_pylist() == ["text 0", "text 2"]
    saved = load_file(folder / "experience.safetensors")
    assert saved["values"].tolist() == [[7.0, 7.0], [7.0, INF]]
    assert saved["old_log_probs"].isnan().tolist() == [[True, False], [True, False]]


def test_without_skip_the_run_ends_with_the_samples_and_the_batch_is_as_it_was(guard, batch, tmp_path):
    scored, experience = batch()
    experience.rewards[1, 1] = NAN
    with pytest.raises(NonFiniteError) as error:
        guard(skip=False).mask_samples(4, experience, scored)
    folder = tmp_path / "nonfinite" / "step_000004"
    assert str(error.value) == (
        "not finite: rewards of 1 responses; 1 samples (response 1 to prompt 1 of 'acme/sums') are saved in "
        f"{folder}; trainer.on_nonfinite=skip leaves them out"
    )
    assert list(error.value.rows) == [1]
    assert experience.response_mask.all()


@pytest.mark.parametrize(("count", "ends"), [(4, "'acme/sums') are"), (5, "'acme/sums', …) are")])
def test_four_samples_are_named_at_most(guard, batch, capsys, count, ends):
    scored, experience = batch(6)
    experience.values[:count] = NAN
    guard().mask_samples(1, experience, scored)
    line = capsys.readouterr().err
    assert line.count("to prompt") == 4
    assert ends in line


def test_further_failures_of_a_step_have_folders_of_their_own(guard, batch, tmp_path):
    scored, experience = batch()
    for _ in range(3):
        guard().handle(1, NonFiniteError("loss", [0]), [0], experience, scored)
    names = sorted(folder.name for folder in (tmp_path / "nonfinite").iterdir())
    assert names == ["step_000001", "step_000001-2", "step_000001-3"]


def test_samples_that_cannot_be_saved_are_named_all_the_same(guard, batch, tmp_path, capsys):
    (tmp_path / "nonfinite").write_text("a file")
    scored, experience = batch()
    guard().handle(1, NonFiniteError("loss", [0]), [0], experience, scored)
    line = capsys.readouterr().err
    assert line.startswith("step 1: loss; 1 samples (response 0 to prompt 0 of 'acme/sums') could not be saved: ")


def test_a_branch_with_a_nan_is_masked_and_named_by_its_episode(guard, batch, capsys):
    scored, experience = batch()
    experience.episode_ids = torch.tensor([0, 1, 1])
    experience.old_log_probs[2, 0] = NAN
    assert guard().mask_samples(3, experience, scored) == 1
    assert experience.response_mask.tolist() == [[True, True], [True, True], [False, False]]
    assert "response 1 to prompt" in capsys.readouterr().err
