"""Rows of preferences and scores: their forms, and rows that cannot be used."""

import math

import pytest

from corerl.errors import DataError
from corerl_supervised.data.conversations import ChatEncoder
from corerl_supervised.data.pairs import ScoreEncoder, load_pairs, load_scored

USER = {"role": "user", "content": "hi"}


def says(content, role="assistant"):
    return {"role": role, "content": content}


TEXT = {"prompt": "hi", "chosen": "yes", "rejected": "no"}
FORMS = [
    TEXT,
    {"prompt": [USER], "chosen": [says("yes")], "rejected": [says("no")]},
    {"chosen": [USER, says("yes")], "rejected": [USER, says("no")]},
    {**TEXT, "margin": None},
]


def text(tokenizer, ids):
    return tokenizer.decode([ids], skip_special_tokens=False)[0]


@pytest.mark.parametrize("row", FORMS)
def test_texts_and_chats_with_and_without_a_prompt_are_the_same_pair(row, tokenizer, write_jsonl):
    [pair], report = load_pairs([write_jsonl([row])], ChatEncoder(tokenizer, {}), 100)
    for example, answer in ((pair.chosen, "yes"), (pair.rejected, "no")):
        learned = [id for id, mask in zip(example.token_ids, example.loss_mask, strict=True) if mask]
        assert text(tokenizer, learned) == f"{answer}<|im_end|>"
        assert text(tokenizer, example.token_ids).startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert (pair.margin, report.kept) == (0.0, 1)


def test_answers_in_the_prompt_are_not_learned_and_later_turns_are(tokenizer, write_jsonl):
    prompt = [USER, says("hello"), says("how are you?", "user")]
    more = [says("fine"), says("sure?", "user"), says("yes")]
    [pair], _ = load_pairs(
        [write_jsonl([{"prompt": prompt, "chosen": more, "rejected": "bad"}])], ChatEncoder(tokenizer, {}), 200
    )
    learned = [id for id, mask in zip(pair.chosen.token_ids, pair.chosen.loss_mask, strict=True) if mask]
    assert text(tokenizer, learned) == "fine<|im_end|>yes<|im_end|>"


def test_a_score_is_read_behind_the_last_token_that_is_no_padding(tokenizer, write_jsonl):
    [pair], _ = load_pairs([write_jsonl([TEXT])], ScoreEncoder(tokenizer, {}), 100)
    messages = [USER, says("yes")]
    whole = tokenizer.encode([tokenizer.render(messages, "here", add_generation_prompt=False)])[0]
    assert pair.chosen.token_ids[:-1] == tuple(whole)
    assert pair.chosen.loss_mask == (*[False] * len(whole), True)
    padded = write_jsonl([{**TEXT, "chosen": "yes", "rejected": "no"}])
    padding = tokenizer.tokenizer.pad_token
    template = tokenizer.tokenizer.chat_template
    try:
        tokenizer.tokenizer.chat_template = template + f"{{{{- '{padding}' }}}}"
        [pair], _ = load_pairs([padded], ScoreEncoder(tokenizer, {}), 100)
    finally:
        tokenizer.tokenizer.chat_template = template
    assert pair.chosen.token_ids[:-1] == tuple(whole)


def test_equal_responses_and_long_rows_are_left_out_and_counted(tokenizer, write_jsonl):
    rows = [TEXT, {**TEXT, "rejected": "yes"}, {**TEXT, "chosen": "y" * 100}, {**TEXT, "rejected": "n" * 100}]
    pairs, report = load_pairs([write_jsonl(rows)], ChatEncoder(tokenizer, {}), 64)
    assert len(pairs) == 1
    assert {why: len(places) for why, places in report.skipped.items()} == {
        "chosen equals rejected": 1,
        "longer than data.max_length=64": 2,
    }


def test_an_empty_response_is_its_end_of_turn(tokenizer, write_jsonl):
    [pair], _ = load_pairs([write_jsonl([{**TEXT, "rejected": ""}])], ChatEncoder(tokenizer, {}), 100)
    learned = [id for id, mask in zip(pair.rejected.token_ids, pair.rejected.loss_mask, strict=True) if mask]
    assert text(tokenizer, learned) == "<|im_end|>"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a", "chosen": "b"}, "has no 'rejected'; its columns are prompt, chosen"),
        ({"prompt": "a", "choosen": "b", "rejected": "c"}, r"has no 'chosen' \(did you mean 'choosen'\?\)"),
        ({"chosen": "b", "rejected": "c"}, "has no 'prompt'"),
        ({**TEXT, "prompt": None}, "column 'prompt': is null"),
        ({**TEXT, "prompt": []}, "column 'prompt': has no messages"),
        ({**TEXT, "chosen": None}, "column 'chosen': has no messages"),
        ({**TEXT, "chosen": [USER]}, "column 'chosen': must begin with the assistant's answer, not with role 'user'"),
        ({"chosen": [says("a")], "rejected": [says("b")]}, "column 'chosen': has no prompt before the response"),
        ({**TEXT, "margin": math.nan}, "column 'margin': is nan, and must be finite"),
        ({**TEXT, "margin": math.inf}, "column 'margin': is inf, and must be finite"),
        ({**TEXT, "margin": "1"}, "column 'margin': must be a number, not '1'"),
    ],
)
def test_a_wrong_row_is_named(row, problem, tokenizer, write_jsonl):
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 2.*{problem}"):
        load_pairs([write_jsonl([TEXT, row])], ChatEncoder(tokenizer, {}), 100)


def test_a_parquet_file_without_the_columns_names_those_that_it_has(tokenizer, write_parquet):
    with pytest.raises(DataError, match=r"its columns are query, answer"):
        load_pairs([write_parquet([{"query": "a", "answer": "b"}])], ChatEncoder(tokenizer, {}), 100)


def test_scores_are_numbers(tokenizer, write_jsonl):
    row = {"prompt": "a", "response": "b", "score": 1}
    [scored], _ = load_scored([write_jsonl([row])], ScoreEncoder(tokenizer, {}), 100)
    assert scored.score == 1.0
    for wrong, problem in ((None, "must be a number"), (math.nan, "is nan"), (True, "must be a number, not True")):
        with pytest.raises(DataError, match=rf"line 1, column 'score': {problem}"):
            load_scored([write_jsonl([{**row, "score": wrong}])], ScoreEncoder(tokenizer, {}), 100)
    with pytest.raises(DataError, match="has no 'score'"):
        load_scored([write_jsonl([{"prompt": "a", "response": "b"}])], ScoreEncoder(tokenizer, {}), 100)
