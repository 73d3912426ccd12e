"""Whatever is wrong with data: one clear line, exit code 2, nothing left behind."""

import pyarrow.parquet as pq
import pytest


def test_an_empty_file_is_named(material, tmp_path, refused):
    pq.write_table(pq.read_table(material / "data" / "train.parquet").slice(0, 0), tmp_path / "none.parquet")
    refused([f"data.train_files=[{tmp_path}/none.parquet]"], "none.parquet: has 0 rows")


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(material, tmp_path, refused, kept):
    content = (material / "data" / "train.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: int(kept * len(content))])
    refused([f"data.train_files=[{tmp_path}/cut.parquet]"], "cut.parquet: truncated", "write it again")


def test_a_validation_file_is_checked_before_the_run_too(tmp_path, refused):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    refused([f"data.val_files=[{tmp_path}/cut.parquet]"], "cut.parquet: truncated")


def test_a_missing_column_is_named_with_the_nearest(rows, write, refused):
    renamed = [{"prompts" if key == "prompt" else key: value for key, value in row.items()} for row in rows]
    refused([write(renamed)], "spoilt.parquet: has no column 'prompt' (did you mean 'prompts'?)", "data_source")


def test_a_prompt_without_messages_is_named_by_its_row(rows, write, refused):
    rows[3]["prompt"] = []
    refused([write(rows)], "spoilt.parquet, row 3, column 'prompt': has no messages")


def test_rows_with_an_empty_ground_truth_are_skipped_and_counted(rows, write, train, workplace):
    for number in (3, 5, 30):
        rows[number]["reward_model"] = {"style": "rule", "ground_truth": ""}
    outcome = train(write(rows), "trainer.total_training_steps=1")
    assert outcome.code == 0
    assert "40 rows read, 37 kept" in outcome.stderr
    assert "3 skipped, empty reward_model.ground_truth" in outcome.stderr
    assert "spoilt.parquet, row 3; row 5; row 30" in outcome.stderr
    assert len(workplace.run_folders) == 1


def test_only_empty_ground_truths_are_an_error(rows, write, refused):
    for row in rows:
        row["reward_model"] = {"style": "rule", "ground_truth": ""}
    refused([write(rows)], "none of 40 rows can be used", "empty reward_model.ground_truth", "row 0")


def test_a_data_source_that_nobody_scores_is_named_with_the_nearest(rows, write, refused):
    rows[3]["data_source"] = "corerl/arithmetics"
    refused([write(rows)], "'corerl/arithmetics' has no scorer (did you mean 'corerl/arithmetic'?)", "reward.scorer")


def test_a_data_source_that_two_scorers_claim_is_an_error_naming_both(workplace, train, refused):
    second = workplace.folder / "second.py"
    second.write_text(
        "from corerl import hookimpl\n"
        "@hookimpl\n"
        "def register_scorers(register):\n"
        "    register('mine', always, summary='x', data_sources=('corerl/arithmetic',))\n"
        "def always(response, ground_truth, data_source, extra_info):\n"
        "    return 1.0\n"
    )
    words = ("data_source 'corerl/arithmetic' is scored by 'arithmetic' of corerl-rewards", f"'mine' of {second}")
    refused(["--plugin", str(second)], *words, "reward.scorer")
    assert train("--plugin", str(second), "reward.scorer=mine", "trainer.total_training_steps=1").code == 0


def test_a_config_that_scores_a_source_which_is_not_there_is_an_error(workplace, refused):
    scorers = f"reward.scorers={{corerl/arithmetics: {workplace.folder}/parts.py:length}}"
    refused([scorers], "reward.scorers.corerl/arithmetics", "did you mean 'corerl/arithmetic'?")


def test_a_function_of_the_user_scores_its_source_also_when_it_is_async(workplace, train):
    (workplace.folder / "mine.py").write_text(
        "import asyncio\n"
        "async def compute_score(response, ground_truth, data_source, extra_info):\n"
        "    await asyncio.sleep(0)\n"
        "    return {'score': len(response) / 100, 'asked': 1.0}\n"
    )
    scorers = f"reward.scorers={{corerl/*: {workplace.folder}/mine.py:compute_score}}"
    outcome = train(scorers, "trainer.total_training_steps=1")
    assert outcome.code == 0
    (run_folder,) = workplace.run_folders
    assert '"reward/asked/mean": 1.0' in (run_folder / "metrics.jsonl").read_text()


def test_overlong_prompts_are_named_with_their_lengths_and_three_remedies(refused):
    refused(
        ["data.max_prompt_length=4", "data.filter_overlong_prompts=false"],
        "40 prompts are longer than data.max_prompt_length=4 tokens",
        "train.parquet, row 0; row 1; row 2; and 37 more",
        "data.filter_overlong_prompts=true",
        "data.truncation=left",
    )


def test_when_every_prompt_is_filtered_out_the_reason_is_given(refused):
    refused(["data.max_prompt_length=4"], "none of 40 rows can be used", "longer than data.max_prompt_length=4")


def test_fewer_prompts_than_a_batch_gives_the_largest_batch(refused):
    refused(["data.train_batch_size=44"], "data.train_batch_size", "40 prompts", "at most 40")
