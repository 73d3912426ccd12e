"""``corerl score`` and ``corerl eval`` on files of responses, with real scorers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl_tools.evaluation.files import read_rows, write_rows

pytest.importorskip("corerl_rewards")
pytest.importorskip("corerl_grpo")
pytest.importorskip("corerl_fsdp")
pytest.importorskip("corerl_hf")

RESPONSES = [("#### 4", True), ("#### 5", True), ("four", False), ("#### 4.0", False)]
"""to 2+2; the second label is wrong, and so is the last"""


def row(response: str, **columns: Any) -> dict[str, Any]:
    return {"data_source": "openai/gsm8k", "ground_truth": "4", "response": response, **columns}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.chdir(tmp_path)

    def to_file(rows: list[dict[str, Any]], name: str = "in.jsonl") -> str:
        Path(name).write_text("".join(f"{json.dumps(each)}\n" for each in rows))
        return name

    return to_file


def test_scores_and_their_agreement_with_labels(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    file = write([row(response, label=label) for response, label in RESPONSES])
    assert run(["score", file, "--label-column", "label"]) == 0
    out = capsys.readouterr().out
    assert "openai/gsm8k  gsm8k   4          4       0.5000" in out
    assert "agreement with 'label': 50.00% of 4, Cohen's kappa 0.000" in out
    assert "label: correct  1                1" in out
    assert "label: wrong    1                1" in out
    assert "correct by the label only: in.jsonl, line 2: extracted '5', ground truth '4'" in out
    assert "correct by the scorer only: in.jsonl, line 4" in out


def test_a_pool_of_a_runtime_is_refused_at_once(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["reward.manager.name=judge", "reward.manager.engine=hf", "reward.manager.model=m"]
    ray = ["runtime.name=ray", "runtime.options.pools.judge=1", "rollout.num_workers=2"]
    for command in ("score", "eval"):
        assert run([command, write([row("#### 4")]), *keys, *ray, "reward.manager.pool=judge"]) == 2
        assert "reward.manager.pool: is judge" in (error := capsys.readouterr().err) and "no runtime" in error


def test_labels_may_be_words_numbers_or_missing(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    labels: list[Any] = ["correct", 0, None, "Yes"]
    file = write([row(response, label=label) for (response, _), label in zip(RESPONSES, labels, strict=True)])
    assert run(["score", file, "--label-column", "label"]) == 0
    assert "100.00% of 3 (1 without label or score)" in capsys.readouterr().out


def test_a_label_that_is_none_and_a_column_that_is_not_there_are_errors(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([row("#### 4", label="perhaps")])
    assert run(["score", file, "--label-column", "label"]) == 2
    assert "in.jsonl, line 1, column 'label': 'perhaps' is no label" in capsys.readouterr().err
    assert run(["score", file, "--label-column", "lable"]) == 2
    assert "did you mean 'label'?" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["out.parquet", "out.jsonl"])
def test_the_rows_are_written_with_scores_components_extractions_and_errors(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str], out: str
) -> None:
    Path("mine.py").write_text(
        "def mine(response, ground_truth, data_source, extra_info):\n"
        "    if response == 'boom':\n"
        "        raise OSError('the sandbox is down')\n"
        "    return {'score': extra_info['weight'], 'length': len(response), 'extracted': response[:1]}\n"
    )
    truth = {"numbers": [1, 2], "target": 3}
    rows = [row("abc", extra_info={"weight": 0.25}, ground_truth=truth, id=7), row("boom", extra_info=None, id=8)]
    assert run(["score", write(rows), "--scorer", "./mine.py:mine", "--out", out]) == 0
    first, second = (dict(each) for _, each in read_rows(out))
    assert (first["score"], first["components"], first["extracted"], first["error"]) == (
        0.25,
        {"length": 3.0},
        "a",
        None,
    )
    assert (first["ground_truth"], first["id"], first["response"]) == (truth, 7, "abc")
    assert second["score"] is None
    assert "OSError: the sandbox is down" in second["error"]
    assert "not scored, 1: the scorer of 'openai/gsm8k' raised OSError" in capsys.readouterr().out


def test_when_every_score_is_the_same_it_shows_what_was_extracted(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["score", write([row("the answer is 4"), row("4")])]) == 0
    out = capsys.readouterr().out
    assert "every score is 0" in out
    assert "in.jsonl, line 1: extracted None, ground truth '4', from a response that ends in 'the answer is 4'" in out


def test_a_source_that_nobody_scores_and_a_row_without_a_source_are_errors(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["score", write([row("x", data_source="acme/unknown")])]) == 2
    assert "data_source 'acme/unknown' has no scorer" in capsys.readouterr().err
    file = write([{"response": "#### 4", "ground_truth": "4"}])
    assert run(["score", file]) == 2
    assert "in.jsonl, line 1: has no 'data_source'" in capsys.readouterr().err
    assert run(["score", file, "--scorer", "gsm8k"]) == 0


def test_eval_scores_what_has_no_score_yet_and_groups_by_prompt(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"2+2": ["#### 4", "#### 4", "#### 5"], "3+1": ["#### 4", "#### 7", "none"]}
    rows = [row(response, prompt=prompt) for prompt, responses in answers.items() for response in responses]
    assert run(["eval", write(rows), "--json", "numbers.json"]) == 0
    numbers = json.loads(Path("numbers.json").read_text())["openai/gsm8k"]
    values = {name: each["value"] for name, each in numbers.items() if isinstance(each, dict)}
    assert (numbers["prompts"], numbers["responses"], numbers["n"], numbers["unscored"]) == (2, 6, 3, 0)
    assert values["mean@3"] == pytest.approx(0.5)
    assert values["pass@2"] == pytest.approx((1 + 2 / 3) / 2)
    assert values["maj@3"] == pytest.approx((1 + 1 / 2) / 2)
    assert values["worst@2"] == pytest.approx((1 / 3 + 0) / 2)
    out = capsys.readouterr().out
    assert "openai/gsm8k: 2 prompts, 3 responses to each" in out
    assert "pass@k" in out and "maj@k" in out


def test_eval_takes_scores_that_are_there_and_a_list_of_responses_in_one_row(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    scored = [row("a", prompt="p", score=1.0), row("b", prompt="p", score=0.0)]
    assert run(["eval", write(scored), "--k", "1"]) == 0
    assert "pass@k   0.5000" in capsys.readouterr().out
    listed = {"data_source": "openai/gsm8k", "prompt": "p", "reward_model": {"ground_truth": "4", "style": "rule"}}
    assert run(["eval", write([listed | {"responses": ["#### 4", "#### 4", "no", "#### 4"]}])]) == 0
    assert "1 prompts, 4 responses to each\n  mean@4  0.7500\n" in capsys.readouterr().out


def test_eval_with_a_scorer_scores_again(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    file = write([row("#### 4", prompt="p", score=0.0)])
    assert run(["eval", file, "--scorer", "gsm8k"]) == 0
    assert "mean@1  1.0000" in capsys.readouterr().out


def test_responses_of_one_prompt_meet_across_files_and_groups_of_two_files_do_not(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = (write([row("#### 4", prompt="p", prompt_index=0, score=1.0)], name) for name in ("a.jsonl", "b.jsonl"))
    assert run(["eval", one, two]) == 0
    assert "1 prompts, 2 responses to each" in capsys.readouterr().out
    one, two = (write([row("#### 4", prompt="p", group=0, score=1.0)], name) for name in ("a.jsonl", "b.jsonl"))
    assert run(["eval", one, two]) == 0
    assert "2 prompts, 1 responses to each" in capsys.readouterr().out


def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [
        row("ä\n", ground_truth={"a": [1, None]}, extra_info={}, seconds=None, label="no"),
        row("b", ground_truth="4", extra_info={"x": 1}, seconds=[1.5], label=True),
    ]
    write_rows(tmp_path / "rows.parquet", rows)
    assert [dict(each) for _, each in read_rows(str(tmp_path / "rows.parquet"))] == rows
    assert pq.read_table(tmp_path / "rows.parquet").column("ground_truth").to_pylist() == ['{"a": [1, null]}', '"4"']


def test_eval_counts_questions_without_a_prompt_one_by_one(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Four questions, of which two have the answer 4: three are right, so 0.75, and not 0.5 over two answers."""
    rows = [row(f"#### {answer}") for answer in ("4", "4", "5", "4")]
    assert run(["eval", write(rows)]) == 0
    printed = capsys.readouterr()
    assert "openai/gsm8k: 4 prompts, 1 responses to each\n  mean@1  0.7500" in printed.out
    assert "4 rows without prompt, prompt_index and group: each is a prompt of its own" in printed.err


@pytest.mark.parametrize(("truth", "majority"), [(r"\frac{1}{2}", 1.0), ("2", 0.0)])
def test_eval_counts_votes_by_answers_and_not_by_spellings(
    write: Callable[..., str], truth: str, majority: float
) -> None:
    """One half, written in three ways, has three votes; two has two."""
    answers = (r"\frac{1}{2}", r"\frac{2}{4}", "0.5", "2", "2")
    rows = [row(rf"\boxed{{{each}}}", prompt="p", ground_truth=truth, data_source="lighteval/MATH") for each in answers]
    assert run(["eval", write(rows), "--json", "numbers.json"]) == 0
    assert json.loads(Path("numbers.json").read_text())["lighteval/MATH"]["maj@5"]["value"] == majority


def test_eval_names_shares_without_an_answer_and_a_scorer_that_reads_more(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["The answer is 4.", "So it is 4", "It is 5", "no idea"]
    rows = [
        row(text, prompt=number, finish_reason="length" if number == 3 else "stop") for number, text in enumerate(texts)
    ]
    assert run(["eval", write(rows), "--json", "numbers.json"]) == 0
    out = capsys.readouterr().out
    assert "of 4 responses, 100.00% without an extracted answer (4), 25.00% cut off at the limit of tokens (1)" in out
    assert (
        "{name: gsm8k, method: flexible} reads an answer in 3 of 4 responses, with a mean score of 0.5000: "
        "--scorer '{name: gsm8k, method: flexible}'"
    ) in out
    numbers = json.loads(Path("numbers.json").read_text())["openai/gsm8k"]
    assert (numbers["without_answer"], numbers["cut_off"]) == (4, 1)


def test_eval_and_score_take_a_scorer_with_options(
    write: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = write([row("it is 4", prompt="p"), {"response": "4", "ground_truth": "4"}])
    assert run(["eval", file, "--scorer", "{name: gsm8k, method: flexible}"]) == 0
    out = capsys.readouterr().out
    assert "mean@1  1.0000" in out and "gsm8k: 1 prompts" in out and "reads an answer" not in out
    assert run(["score", file, "--scorer", "{name: gsm8k, method: flexible}"]) == 0
    assert "1.0000" in capsys.readouterr().out
    assert run(["eval", file, "--scorer", "{name: gsm8k, method: loose}"]) == 2
    assert "method" in capsys.readouterr().err
    assert run(["eval", file, "--scorer", "{name: gsm8k"]) == 2
    assert "--scorer: must be a name or '{name: NAME, option: value}'" in capsys.readouterr().err
