"""``corerl prepare`` on real files, and on arithmetic made from a seed."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from corerl.cli.main import run
from corerl.errors import ConfigError, DataError
from corerl.plugins import load_plugins
from corerl_rewards.options import ArithmeticDataOptions, MathDataOptions
from corerl_rewards.preparers.arithmetic import Arithmetic
from corerl_rewards.preparers.countdown import Countdown
from corerl_rewards.preparers.gsm8k import Gsm8k
from corerl_rewards.preparers.math import Math
from corerl_rewards.scorers.gsm8k import gsm8k
from corerl_tools.prepare.contract import ChatRow, Dropped, PromptRow

DATA = Path(__file__).parents[4] / "shared" / "data"


def shared(path: str) -> str:
    if not (DATA / path).exists():
        pytest.skip(f"{path} is not beside the repository, in ../shared/data")
    return str(DATA / path)


def read(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return rows


def test_gsm8k_gives_all_its_rows(tmp_path: Path) -> None:
    assert run(["prepare", "gsm8k", shared("gsm8k"), "--out", str(tmp_path)]) == 0
    train, test = read(tmp_path / "train.parquet"), read(tmp_path / "test.parquet")
    assert (len(train), len(test)) == (7473, 1319)
    assert test[0]["prompt"][0]["content"].endswith(
        "How much in dollars does she make every day at the farmers' market?"
        ' Let\'s think step by step and output the final answer after "####".'
    )
    assert test[0]["reward_model"] == {"style": "rule", "ground_truth": "18"}
    assert test[0]["data_source"] == "openai/gsm8k"
    assert "1080" in {row["reward_model"]["ground_truth"] for row in train}  # written 1,080 in the source


@pytest.mark.parametrize(("name", "rows", "noted"), [("test", 5000, 23), ("math500", 500, 0)])
def test_math_gives_all_its_rows(
    name: str, rows: int, noted: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = shared(f"math/{name}.jsonl")
    assert run(["prepare", "math", source, "--split", "test", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["test", str(rows), str(rows), "0", str(noted)]
    assert len(read(tmp_path / "test.parquet")) == rows


def test_countdown_gives_all_its_rows(tmp_path: Path) -> None:
    assert run(["prepare", "countdown", shared("countdown"), "--out", str(tmp_path)]) == 0
    train, test = read(tmp_path / "train.parquet"), read(tmp_path / "test.parquet")
    assert (len(train), len(test)) == (8001, 2001)
    assert train[0]["reward_model"]["ground_truth"] == {"numbers": [44, 19, 35], "target": 98}
    assert train[0]["prompt"][0]["content"].startswith(
        "Using the numbers [44, 19, 35], create an equation that equals 98."
    )


def test_gsm8k_drops_a_row_without_an_answer() -> None:
    assert Gsm8k()({"question": "?", "answer": "no idea"}) == Dropped("no number after #### in the answer")
    assert Gsm8k()({"question": " ", "answer": "#### 1"}) == Dropped("empty question")


def test_math_takes_the_last_box_and_notes_that_there_were_others() -> None:
    prepare = Math(MathDataOptions(data_source="lighteval/MATH"))
    row = prepare({"problem": "p", "solution": r"\boxed{-2} and \boxed{1}", "level": "Level 3", "type": "Algebra"})
    assert isinstance(row, PromptRow)
    assert (row.data_source, row.ground_truth) == ("lighteval/MATH", "-2, 1")
    assert row.note == "several different \\boxed{} in the solution: the last is used, with those that are joined to it"
    assert (row.extra_info["level"], row.extra_info["subject"]) == ("Level 3", "Algebra")
    row = prepare({"problem": "p", "solution": r"\boxed{-2}, no, \boxed{1}"})
    assert isinstance(row, PromptRow) and row.ground_truth == "1"


def test_math_prefers_a_given_answer() -> None:
    row = Math(MathDataOptions())({"problem": "p", "solution": r"\boxed{-2} and \boxed{1}", "answer": "-2, 1"})
    assert isinstance(row, PromptRow)
    assert (row.ground_truth, row.note) == ("-2, 1", "")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"problem": "p", "solution": "s"}, "no \\boxed{} in the solution"),
        ({"problem": "p", "solution": r"\boxed{}"}, "empty answer"),
        ({"problem": "p", "solution": r"\boxed{5", "type": "Algebra"}, "empty answer"),
        ({"problem": "p", "solution": r"\boxed{5}", "answer": " "}, "empty answer"),
        ({"problem": "", "solution": r"\boxed{5}"}, "empty problem"),
    ],
)
def test_math_drops_rows_without_an_answer(record: dict[str, str], reason: str) -> None:
    assert Math(MathDataOptions())(record) == Dropped(reason)


@pytest.mark.parametrize(
    ("preparer", "record", "message"),
    [
        (Gsm8k(), {"question": "?"}, "column 'answer' should hold text, found only question"),
        (Math(MathDataOptions()), {"problem": "p"}, "column 'solution' should hold text"),
        (Countdown(), {"nums": "1 2", "target": 3}, "column 'nums' should hold a list of integers, found '1 2'"),
        (Countdown(), {"nums": [1, 2]}, "column 'target' should hold an integer, found None"),
    ],
)
def test_records_of_another_set_are_refused(
    preparer: Callable[[dict[str, Any]], Any], record: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        preparer(record)


def arithmetic(**options: Any) -> dict[str, list[Any]]:
    made = Arithmetic(ArithmeticDataOptions(**options)).generate()
    return {split: list(rows) for split, rows in made.items()}


def question(row: PromptRow | ChatRow) -> str:
    return row.messages[0]["content"] if isinstance(row, ChatRow) else row.prompt[0]["content"]


def problem(text: str) -> tuple[Any, ...]:
    """'3 + 2 = ?' and '2 + 3 = ?' are one problem, '3 - 2 = ?' and '2 - 3 = ?' two."""
    left, operation, right, *_ = text.split()
    return (operation, left, right) if operation == "-" else (operation, *sorted([left, right]))


def test_no_test_problem_is_in_another_split_in_either_order() -> None:
    splits = arithmetic(operations="+-*", max_operand=20, train_size=300, test_size=60, sft_size=90)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 300, "test": 60, "sft": 90}
    problems = {split: {problem(question(row)) for row in rows} for split, rows in splits.items()}
    assert len(problems["test"]) == 60
    assert not problems["test"] & (problems["train"] | problems["sft"])
    assert len({question(row) for row in splits["train"]}) == 300


def test_arithmetic_can_use_every_problem_there_is() -> None:
    splits = arithmetic(operations="-", min_operand=1, max_operand=4, train_size=13, test_size=3, sft_size=13)
    pairs = {f"{left} - {right} = ?" for left in range(1, 5) for right in range(1, 5)}
    assert {question(row) for split in ("train", "test") for row in splits[split]} == pairs


def test_a_hasty_teacher_cuts_the_given_share_of_answers_to_whole_tens() -> None:
    rows = arithmetic(operations="+", max_operand=60, train_size=9, test_size=9, sft_size=200, hasty=0.6)["sft"]
    cut = 0
    for row in rows:
        left, _, right, *_ = question(row).split()
        result, answer = int(left) + int(right), int(row.messages[1]["content"].removeprefix("#### "))
        assert answer in (result, result - result % 10)
        cut += answer != result
    assert 90 < cut <= 120  # some results are whole tens themselves


def test_a_careless_teacher_misses_the_given_share_of_results_by_one_or_two() -> None:
    sizes: dict[str, Any] = {
        "operations": "+",
        "min_operand": 10,
        "max_operand": 60,
        "train_size": 9,
        "test_size": 9,
        "sft_size": 200,
    }
    errors: Counter[int] = Counter()
    for row in arithmetic(**sizes, careless=0.8)["sft"]:
        left, _, right, *_ = question(row).split()
        errors[int(row.messages[1]["content"].removeprefix("#### ")) - int(left) - int(right)] += 1
    assert errors[0] == 40 and set(errors) == {-2, -1, 0, 1, 2} and min(errors.values()) > 20
    with pytest.raises(ConfigError, match="careless: must be at most"):
        arithmetic(**sizes, hasty=0.6, careless=0.5)


def test_arithmetic_uses_operations_equally_and_both_orders_of_operands() -> None:
    texts = [question(row).split() for row in arithmetic(train_size=2000)["train"]]
    assert sum(text[1] == "+" for text in texts) == 1000
    smaller_first = [int(text[0]) < int(text[2]) for text in texts if text[1] == "+" and text[0] != text[2]]
    assert 400 < sum(smaller_first) < 600


def test_arithmetic_is_right_and_its_worked_answers_score_1() -> None:
    splits = arithmetic(operations="+-*", train_size=99, test_size=9, sft_size=30)
    for row in splits["train"]:
        left, operation, right, equals, mark = question(row).split()
        value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[operation]
        assert (row.ground_truth, equals, mark) == (str(value), "=", "?")
        assert gsm8k(row.extra_info["answer"], row.ground_truth, row.data_source, {})["score"] == 1.0
    assert [message["role"] for message in splits["sft"][0].messages] == ["user", "assistant"]


def test_arithmetic_repeats_with_its_seed() -> None:
    assert arithmetic(seed=5) == arithmetic(seed=5)
    assert arithmetic(seed=5) != arithmetic(seed=6)


def test_arithmetic_without_sft_rows_has_no_sft_split() -> None:
    assert list(arithmetic(sft_size=0)) == ["train", "test"]


def test_more_problems_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"14, 3, 3 problems with '-' are asked for, .* from 0 to 3 make only 16"):
        arithmetic(operations="-", max_operand=3, train_size=14, test_size=3, sft_size=3)


@pytest.mark.parametrize("operations", ["", "/", "+/"])
def test_an_unknown_operation_is_an_error(operations: str) -> None:
    with pytest.raises(ConfigError, match=r"operations: must be some of \+ - \*"):
        arithmetic(operations=operations)


def test_every_data_source_that_is_prepared_here_has_a_scorer() -> None:
    scored = {source for entry in load_plugins().registries.scorers for source in entry.facts.data_sources}
    assert {"openai/gsm8k", "corerl/arithmetic", "countdown", MathDataOptions().data_source} <= scored


def test_no_data_source_has_two_scorers() -> None:
    sources = [source for entry in load_plugins().registries.scorers for source in entry.facts.data_sources]
    assert len(sources) == len(set(sources))
