"""``corerl rollouts show``."""

import pytest

from corerl.cli.main import run
from corerl_tools.evaluation.files import write_rows
from corerl_tools.evaluation.samples import write_rollouts


@pytest.fixture
def folder(played, played_tokens, results, tmp_path):
    """A run with the samples of steps 2 and 10."""
    for step in (2, 10):
        write_rollouts(tmp_path / "rollouts" / f"step_{step:06d}.parquet", played.rollouts, results, played_tokens)
    return tmp_path


@pytest.fixture
def show(folder, capsys):
    """``show(arguments, …)``: exit code and the printed lines."""

    def call(*arguments):
        code = run(["rollouts", "show", str(folder), *arguments])
        printed = capsys.readouterr()
        return code, [line.rstrip() for line in (printed.out + printed.err).splitlines()]

    return call


def test_a_response_is_a_conversation_with_turns_tools_branches_and_artifacts(show):
    code, lines = show("--row", "0")
    assert code == 0
    assert lines[0].startswith("step 10 · row 0 · group 0 · score 1 · x ──")
    assert lines[1] == "expected 4 · turns 4 · tokens 2 + 19 · ended by length · weights 1"
    assert lines[2].startswith("━━━━") and "  generating " in lines[2] and "  tool " in lines[2]
    heads = [line for line in lines if line and not line.startswith(" ")][3:]
    names = (
        "user",
        "assistant  turn 1",
        "tool · add",
        "assistant  turn 4",
        "branch 1  begins anew",
        "branch 2  continues turn 1",
    )
    for line, name in zip(heads, (*names, "artifact stdout"), strict=True):
        assert line.startswith(name)
    assert heads[1].endswith("4 tokens · reward 0.5") and heads[3].endswith("6 tokens · ended by length · reward -0.25")
    for text in ("  so be it", '  → add {"a": 2, "b": 2}', "    side:", "    answer 11<|im_end|>"):
        assert text in lines


def test_texts_of_a_run_cannot_control_the_terminal(show):
    _, lines = show("--row", "0")
    assert not any("\x1b" in line for line in lines)
    assert sum(r"\x1b[31m" in line for line in lines) == 3  # of the prompt, the tool and the artifact


def test_a_failed_episode_names_its_error_once(show):
    _, lines = show("--row", "2", "--step", "2")
    assert lines[0].startswith("step 2 · row 2 · group 1 · score none")
    assert lines.count("the tool broke") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], [0, 1, 2]),
        (["--most", "9"], [0, 1, 2, 3]),
        (["--sort", "score", "--most", "2"], [0, 1]),
        (["--sort", "-score", "--most", "4"], [1, 0, 2, 3]),
        (["--sort", "turns"], [0, 1, 2]),
        (["--sort", "length", "--most", "1"], [0]),
    ],
)
def test_responses_are_chosen_by_an_order(show, arguments, expected):
    code, lines = show(*arguments)
    assert code == 0
    assert [int(line.split(" · ")[1].removeprefix("row ")) for line in lines if " · row " in line] == expected
    assert lines[-1].startswith(f"{len(expected)} of 4 responses of ")


def test_the_longest_played_come_first(show, played):
    _, lines = show("--sort", "seconds", "--most", "1")
    seconds = [round(each.seconds["played"], 6) for each in played.rollouts.episodes]
    assert f"row {seconds.index(max(seconds))} " in lines[0]


def test_long_texts_lose_their_middle(show):
    _, lines = show("--row", "0", "--characters", "100")
    assert not any("characters …" in line for line in lines)


def test_a_file_of_responses_is_shown_too(tmp_path, capsys):
    path = tmp_path / "responses.jsonl"
    write_rows(path, [{"prompt": "q", "response": "r" * 300, "score": 0.5}, {"prompt": "q", "response": "s"}])
    assert run(["rollouts", "show", str(path), "--characters", "100"]) == 0
    printed = capsys.readouterr().out
    assert "responses.jsonl · row 0 · score 0.5" in printed and "200 characters" in printed
    assert "2 of 2 responses" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "3"], "has no sample rollouts of step 3: the steps are 2, 10"),
        (["--row", "4"], "has rows 0 to 3, not 4"),
    ],
)
def test_a_step_or_a_row_that_is_not_there_is_a_wrong_request(show, arguments, message):
    code, lines = show(*arguments)
    assert code == 2 and message in lines[-1]


def test_a_run_without_samples_is_a_wrong_request(tmp_path, capsys):
    assert run(["rollouts", "show", str(tmp_path)]) == 2
    assert "has no sample rollouts: train with trainer.log_rollouts_freq=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "columns",
    [
        {"requests": [{"number": 0}]},
        {"requests": 7},
        {"turn_runs": [[0]]},
        {"turn_rewards": ["x"]},
        {"branches": [{"prompt": ""}]},
        {"seconds": {"played": "x"}},
        {"artifacts": [1]},
    ],
    ids=str,
)
def test_a_file_of_others_is_an_error_in_words(tmp_path, capsys, columns):
    path = tmp_path / "responses.jsonl"
    write_rows(path, [{"prompt": "q", "response": "r", **columns}])
    assert run(["rollouts", "show", str(path)]) == 2
    assert "responses.jsonl is damaged, or not of CoreRL" in capsys.readouterr().err
