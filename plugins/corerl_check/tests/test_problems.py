"""The table of known problems: the page is made from it, and its messages are those that the code has."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from corerl_check.problems import PAGE, TITLES, page, problem_of, table
from corerl_engines.installed import outside

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def messages() -> list[str]:
    """Every string of the program, what f-strings put in shown as …"""
    files = [*ROOT.glob("corerl/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    return [text for file in files for text in strings(ast.parse(file.read_text()))]


def strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)  # type: ignore[misc]


def test_the_page_is_that_of_the_table() -> None:
    assert (ROOT / PAGE).read_text() == page(), "python scripts/troubleshooting.py"


def test_names_are_unique_and_every_room_has_some() -> None:
    names = [problem.name for problem in table()]
    assert len(set(names)) == len(names)
    assert {problem.room for problem in table()} == set(TITLES)


@pytest.mark.parametrize("problem", [each for each in table() if not each.foreign], ids=lambda each: each.name)
def test_our_messages_are_in_the_code(problem, messages: list[str]) -> None:
    """Each fragment between two … is in a string of the program; a problem with a library's message has one of ours."""

    def is_ours(seen: str) -> bool:
        fragments = [fragment for fragment in seen.split("…") if len(fragment.strip()) > 3]
        return all(any(fragment in text for text in messages) for fragment in fragments)

    assert any(map(is_ours, problem.seen)) or problem.name == "generation does not fit", problem.seen
    if problem.name not in ("a worker died", "no room for the KV cache", "generation does not fit"):
        assert all(map(is_ours, problem.seen)), problem.seen


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("error: data.lr: unknown key; did you mean actor.optim.lr?", "unknown key"),
        ("algorithm.adv_estimator: unknown advantage estimator 'grop'; known: grpo", "unknown name"),
        ("unknown tracker 'x': it comes with y, which is not installed (pip install y); known: z", "not installed"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "out of memory"),
        ("NCCL error in: x.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO for details)", "NCCL"),
        (
            "no Ray cluster could be started on this machine: The current node timed out during startup",
            "Ray does not start",
        ),
        ("aiohttp: Request Entity Too Large", "request too large for Ray"),
        ("every reward in this step is 0", "all rewards are 0"),
        ("the actor worker 1 of 2 (process 5 on 10.0.0.1) died: SIGKILL; it printed nothing", "a worker died"),
        ("3 does not divide the 8 attention heads of model.path; 1, 2, 4 or 8 would", "heads do not divide"),
    ],
)
def test_a_message_finds_its_problem(message: str, name: str) -> None:
    problem = problem_of(message)
    assert problem is not None and problem.name == name


def test_an_unknown_message_has_none() -> None:
    assert problem_of("something else altogether") is None


def test_keys_that_remedies_name_are_keys() -> None:
    from corerl.config.nearest_keys import dotted_keys
    from corerl.contracts.config import TrainConfig

    known, sections = set(dotted_keys(TrainConfig)), {"model", "data", "algorithm", "actor", "rollout", "reward"}
    sections |= {"trainer", "runtime", "tracking", "plugins"}
    for problem in table():
        for key in re.findall(r"\b[a-z]+(?:\.[a-z_]+)+\b", problem.remedy):
            named = key.replace("rollout.options.", "rollout.options ").replace("runtime.options.", "runtime.options ")
            if key.partition(".")[0] in sections and not key.endswith(".md"):
                assert named.partition(" ")[0] in known, (problem.name, key)


def test_versions_are_compared_by_their_numbers() -> None:
    tested = ((0, 26), (0, 33))
    assert outside("0.26.0+cu129", "vLLM", tested) is None
    assert outside("0.9.2", "vLLM", tested) == "vLLM 0.9.2 is outside of the tested range (>=0.26,<0.33)"
    assert outside("0.33.0", "vLLM", tested) is not None
