"""Supervised fine-tuning: what is learned of a conversation, and what is written when."""

import json
from pathlib import Path

import pytest
import torch

from corerl.errors import ConfigError
from corerl_supervised.data.conversations import ChatExample
from corerl_supervised.tasks import batch_of
from corerl_testing.tiny_model import reference, response_log_probs, tiny_model

EXAMPLES = [
    ChatExample((1, 2, 3, 4), (False, False, True, True)),
    ChatExample((5, 6, 7, 8, 9), (False, True, False, True, True)),
]
"""the second has a user's turn between two of the assistant's"""


def test_what_precedes_the_first_learned_token_is_the_prompt_and_the_others_are_masked():
    batch = batch_of(EXAMPLES)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 0], [5, 6, 7, 8, 9]]
    assert (batch.prompt_lengths.tolist(), batch.response_lengths.tolist()) == ([2, 1], [2, 4])
    assert batch.response_mask.tolist() == [[True, True, False, False], [True, False, True, True]]
    assert batch.group_ids.tolist() == [0, 1]


@pytest.fixture
def sft(trained, write_jsonl):
    """``sft(section__key=value, …)``: fine-tune the tiny model on three conversations; the records and the folder."""
    chats = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in (("1+1", "2"), ("1+2", "3"), ("2+2", "4"))
    ]
    rows, val = write_jsonl([{"messages": chat} for chat in chats]), write_jsonl([{"messages": chats[0]}], "val.jsonl")

    def start(**keys):
        return trained("sft", [rows], **{"data__train_batch_size": 1, **keys})

    start.val = [val]
    return start


def cross_entropy(folder: Path) -> float:
    """Of the tokens of ``2<|im_end|>`` in the first conversation, in float64, by an independent model."""
    prompt = [257, *b"user\n1+1", 258, *b"\n", 257, *b"assistant\n"]
    answer = [*b"2", 258]
    log_probs = response_log_probs(reference(folder), prompt, answer)
    return -float(log_probs.gather(1, torch.tensor(answer)[:, None]).mean().detach())


def test_a_run_is_its_steps_and_leaves_a_model_that_can_be_loaded(sft):
    records, folder = sft(data__val_files=sft.val, trainer__total_epochs=2, trainer__test_freq=2)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in records if "val/loss" in record] == [2, 4, 6]
    assert records[0]["train/loss"] == pytest.approx(cross_entropy(tiny_model()), abs=1e-4)
    assert records[-1]["val/loss"] == pytest.approx(cross_entropy(folder), abs=1e-4)
    assert records[-1]["val/loss"] < records[0]["train/loss"]
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"


def test_prompt_and_response_are_a_conversation_as_well(sft, trained, write_jsonl):
    [first, *_], _ = sft()
    rows = write_jsonl([{"prompt": "1+1", "response": "2"}], "answers.jsonl")
    [only], _ = trained("sft", [rows], data__train_batch_size=1, overwrite=True)
    assert only["train/loss"] == first["train/loss"]


def test_the_loss_on_other_conversations_is_recorded_after_the_last_step_unless_there_are_none(sft):
    records, _ = sft(data__val_files=sft.val, trainer__total_training_steps=2)
    assert ["val/loss" in record for record in records] == [False, True]
    records, _ = sft(data__val_files=[], trainer__total_training_steps=1, overwrite=True)
    assert ["val/loss" in record for record in records] == [False]


def test_a_folder_that_is_there_is_replaced_only_if_that_is_asked_for_and_it_holds_a_model(sft, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match=r"output: .* already exists; overwrite=true replaces it"):
        sft()
    with pytest.raises(ConfigError, match=r"output: .* is not a model folder \(it has no config.json\)"):
        sft(overwrite=True)
    assert (out / "thesis.txt").exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(sft, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^output: "):
        sft(output=str(tmp_path / "file" / "out"), data__train_files=["nowhere.jsonl"])
