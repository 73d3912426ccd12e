"""The mutation run: what it changes, which tests it asks, and that the tree is as it was."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections import defaultdict
from pathlib import Path

import pytest

from scripts.mutants import __main__ as command
from scripts.mutants import mirrors, report
from scripts.mutants.operators import mutations
from scripts.mutants.runner import Mutant, Outcome, Run

ROOT = Path(__file__).parents[2]


def changed(source):
    """(kind, the changed line as it is then) of every mutation of some lines."""
    text = textwrap.dedent(source).encode()
    lines = [(each.kind, each.apply(text).decode().splitlines()) for each in mutations(text)]
    before = text.decode().splitlines()
    return [(kind, next(new for old, new in zip(before, after, strict=True) if old != new)) for kind, after in lines]


@pytest.mark.parametrize(
    ("line", "kind", "mutants"),
    [
        ("a < b <= c", "comparison", ["a <= b <= c", "a < b < c"]),
        ("a is not None", "comparison", ["a is None"]),
        ("a not in b", "comparison", ["a in b"]),
        ("(a) == (b)", "comparison", ["(a) != (b)"]),
        ("a + b // c", "arithmetic", ["a - b // c", "a + b / c"]),
        ("a += b", "arithmetic", ["a -= b"]),
        ("a | b", "arithmetic", ["a & b"]),
        ("a and b and c", "boolean", ["a or b and c", "a and b or c"]),
        ("not a", "boolean", ["(a)"]),
        ("-a", "boolean", ["(a)"]),
        ("f(a, b=1, **c)", "argument", ["f(a, **c)", "f(a, b=1)"]),
        ("a = b if c else d", "condition", ["a = b if False else d", "a = b if True else d"]),
        ("[a for a in b if c]", "condition", ["[a for a in b if False]", "[a for a in b if True]"]),
        ("f(a)", "statement", ["pass"]),
        ("a.b = c", "statement", ["pass"]),
        ("a[b] = c", "statement", ["pass"]),
        ("a = 1", "constant", ["a = 2"]),
        ("a = 0.5", "constant", ["a = 1.5"]),
        ("a = True", "constant", ["a = False"]),
        ("a = 'é' + b", "constant", ["a = 'é_' + b"]),
    ],
)
def test_each_kind_of_mutation_changes_what_it_names(line, kind, mutants):
    assert [now for found, now in changed(line) if found == kind] == mutants


def test_a_function_returns_none():
    assert ("return", "    return None") in changed("def f(a):\n    return a\n")
    assert changed("def f():\n    return None\n") == []


@pytest.mark.parametrize(
    "source",
    [
        '"""A text."""',
        "def f(a: int | None) -> 'int':\n    ...",
        "a: list[int | None]",
        "@dataclass(frozen=True)\nclass A:\n    pass",
        "assert a < 1, 'why'",
        "raise ValueError(f'{a + 1} is too much')",
        "a = say('a text')",
        "if TYPE_CHECKING:\n    a = 1",
        "__all__ = ['a']",
        "T = TypeVar('T')",
        "Mode = Literal['a', 'b']",
        "f'{a + 1}'",
    ],
)
def test_what_is_for_readers_and_type_checkers_is_left_alone(source):
    assert changed(source) == []


def test_the_default_of_an_option_is_changed_and_its_help_is_not():
    assert changed("a: float = option(0.5, 'how much', gt=0)") == [
        ("argument", "a: float = option(0.5, 'how much')"),
        ("constant", "a: float = option(1.5, 'how much', gt=0)"),
        ("constant", "a: float = option(0.5, 'how much', gt=1)"),
    ]


def test_operators_are_found_behind_brackets_comments_and_letters_of_two_bytes():
    assert ("arithmetic", "    - b)") in changed("c = ('é' and (a)  # not + this\n    + b)")


def test_the_nearest_tests_come_first():
    found = [str(path) for path in mirrors.tests(ROOT, Path("corerl/trainer/updates.py"))]
    assert found[0] == "tests/trainer/test_updates.py"
    assert "tests/trainer/test_nonfinite.py" in found
    found = [
        str(path) for path in mirrors.tests(ROOT, Path("plugins/corerl_engines/src/corerl_engines/remote/server.py"))
    ]
    assert "plugins/corerl_engines/tests/test_backend.py" in found
    found = [path.name for path in mirrors.tests(ROOT, Path("plugins/corerl_grpo/src/corerl_grpo/losses/clip_cov.py"))]
    assert all(name.startswith("test_losses_") for name in found[:4])
    assert {"test_conformance.py", "test_grpo.py"} <= set(found)


@pytest.mark.parametrize("package", mirrors.PACKAGES)
def test_every_module_with_a_mutant_has_a_test(package):
    modules = mirrors.modules(ROOT, package)
    assert modules
    assert all(mirrors.tests(ROOT, module) for module in modules)


def test_a_sample_follows_from_its_seed_and_is_all_where_that_is_less():
    first, again = (command.sample(ROOT, ["batch", "objective"], 20, 3) for _ in range(2))
    assert first == again
    assert len(set(first)) == 20
    assert first != command.sample(ROOT, ["batch", "objective"], 20, 4)
    whole = command.sample(ROOT, ["batch"], 0, 0)
    assert command.sample(ROOT, ["batch"], 10_000, 0) == whole
    assert {mutant.package for mutant in whole} == {"batch"}


def test_a_mutant_runs_the_nearest_tests_that_its_budget_allows_and_has_a_deadline():
    mutant = command.sample(ROOT, ["batch"], 1, 0)[0]
    files = [Path(name) for name in ("near", "failing", "long", "short")]
    seconds = {Path("near"): 8.0, Path("long"): 5.0, Path("short"): 2.0}
    run = command.planned(mutant, files, seconds, budget=10.0)
    assert run.tests == (Path("near"), Path("short"))
    assert run.seconds == 4 * 10.0 + 20.0
    assert command.planned(mutant, files, seconds, budget=1.0).tests == (Path("near"),)


def outcomes(root):
    """Of four mutants of one line, one of each verdict; the last is judged."""
    (root / "a.py").write_text("def f(x):\n    return x + 1 < 2\n")
    found = mutations((root / "a.py").read_bytes())
    verdicts = ["killed", "timed out", "survived", "survived"]
    made = [
        Outcome(Run(Mutant("batch", Path("a.py"), mutation), (), 1.0), verdict, 0.5, "")
        for mutation, verdict in zip(found, verdicts, strict=False)
    ]
    was, now, _ = report.lines(root, made[-1].run.mutant)
    return made, [report.Judged("a.py", was, now, "the same for integers")]


def test_the_report_counts_what_was_noticed_and_shows_each_survivor(tmp_path):
    made, judged = outcomes(tmp_path)
    entries = [report.entry(tmp_path, each, judged) for each in made]
    assert [each.verdict for each in entries] == ["killed", "timed out", "survived", "equivalent"]
    assert entries[3].why == "the same for integers"
    assert report.summary(entries, 2) == [
        "package  killed  timed out  survived  equivalent  noticed",
        "batch    1       1          1         1           66.7%",
        "all      1       1          1         1           66.7%",
        "2 mutants of the sample were not begun: the time was over",
    ]
    [shown] = report.survivors(entries)
    assert shown.startswith("a.py:2 (")
    assert "\n-    return x + 1 < 2\n+    return " in shown
    report.write(tmp_path / "out", entries, {"seed": 0}, 2)
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (written["seed"], written["not_begun"]) == (0, 2)
    assert [each["verdict"] for each in written["mutants"]] == [each.verdict for each in entries]
    assert shown in (tmp_path / "out" / "report.txt").read_text()


SCRIPT = """
import sys
from pathlib import Path
from scripts.mutants import __main__ as command, mirrors, runner

runner.PRELOADED = ("pytest",)
mirrors.PACKAGES = {"batch": ["corerl/batch/*.py"]}
command.GRACE = float(sys.argv.pop())
sys.exit(command.main(sys.argv[1:], Path.cwd()))
"""

MODULE = """
def until(limit):
    count = 0
    while count != limit:
        count += 1
    return count


def unnoticed():
    return 5
"""

TEST = """
from corerl.batch.loops import until, unnoticed

def test_it_counts():
    assert until(3) == 3
    assert unnoticed()
"""


@pytest.fixture
def project(tmp_path):
    """A tree of one module, which its test does not quite hold."""
    for name, text in {
        "corerl/batch/loops.py": MODULE,
        "corerl/batch/__init__.py": "",
        "corerl/__init__.py": "",
        "tests/batch/test_loops.py": TEST,
        "ignored/large.bin": "not copied",
        ".gitignore": "ignored/\n.mutants/\n",
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--import-mode=importlib'\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def contents(folder):
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def start(project, temporary, workers, grace):
    """Run all mutants; ``grace`` is the deadline of one that never ends."""
    temporary.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "--number=0", f"--workers={workers}", str(grace)],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_run_finds_what_survives_and_what_never_ends_and_leaves_the_tree_as_it_was(project, tmp_path_factory):
    before, temporary = contents(project), tmp_path_factory.mktemp("parent") / "tmp"
    process = start(project, temporary, workers=2, grace=5.0)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    written = json.loads((project / ".mutants" / "report.json").read_text())
    by_kind = defaultdict(set)
    for each in written["mutants"]:
        by_kind[each["line"], each["kind"]].add(each["verdict"])
    assert by_kind[4, "comparison"] == {"killed"}
    assert by_kind[5, "arithmetic"] == {"timed out"}
    assert by_kind[6, "return"] == {"killed"}
    assert by_kind[10, "constant"] == {"survived"}
    assert by_kind[10, "return"] == {"killed"}
    assert "return 6" in (project / ".mutants" / "report.txt").read_text()
    after = contents(project)
    assert {name: text for name, text in after.items() if not name.startswith(".mutants/")} == before
    assert list(temporary.iterdir()) == []


def test_a_run_that_is_ended_leaves_nothing_behind_but_its_report(project, tmp_path_factory):
    before, temporary = contents(project), tmp_path_factory.mktemp("parent") / "tmp"
    process = start(project, temporary, workers=1, grace=600.0)
    lines, end = [], time.monotonic() + 300
    while not any(line.startswith("1/") for line in lines) and time.monotonic() < end:
        lines.append(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143
    after = contents(project)
    report_ = json.loads(after.pop(".mutants/report.json"))
    after.pop(".mutants/report.txt")
    assert after == before
    assert len(report_["mutants"]) >= 1
    assert report_["not_begun"] >= 1
    assert list(temporary.iterdir()) == []
