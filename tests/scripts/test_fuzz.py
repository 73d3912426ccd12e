"""The fuzz run itself: what it holds against a reader, and a second of every target."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLANTED = """
import os, sys, time
from pathlib import Path
from hypothesis import strategies as st
from corerl.errors import DataError
from scripts.fuzz import __main__ as fuzz, watch

class Planted:
    name, seconds, processes, cases = "planted", 0.5, False, st.just(sys.argv[1])
    def prepare(self, folder): pass
    def read(self, case, folder):
        if case == "refuse": raise DataError("no")
        exec(case)

watch.install()
found = fuzz.fuzz(Planted(), 0.5, 0)
print(found.cases > 0, [where.split(" at ")[0] for where in found.failures])
"""


@pytest.mark.parametrize(
    ("code", "failures"),
    [
        ("refuse", "[]"),
        ("{}['a']", "['KeyError']"),
        ("os.system('true')", "['Forbidden']"),
        ("Path('inside').touch()", "[]"),
        ("(folder.parent / 'outside').touch()", "['Forbidden']"),
        ("(folder / 'a.py').write_text('1'); sys.path.insert(0, str(folder)); import a", "['Forbidden']"),
        ("time.sleep(30)", "['Late']"),
    ],
)
def test_what_a_reader_must_not_do_is_a_failure(code: str, failures: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLANTED, code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip().endswith(f"True {failures}"), done.stdout + done.stderr


@pytest.mark.skipif("CORERL_CHAOS" not in os.environ, reason="a second of each target: set CORERL_CHAOS=1")
def test_every_target_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.fuzz", "--minutes", "0.05", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 9
