"""With interpreters that write down what they are asked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from corerl.errors import RunError
from corerl_engines.install import make_environment

STEPS = [["acme==1"], ["--no-deps", "parts"]]


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[Path, str], Path]:
    """A program that writes its name and its arguments to the file ``asked``, and then runs a line."""

    def interpreter(program: Path, line: str = "") -> Path:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "{program.name} $@" >> {tmp_path}/asked\n{line}\n')
        program.chmod(0o755)
        return program

    return interpreter


def test_an_environment_is_made_filled_tried_and_named(
    interpreter: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = interpreter(tmp_path / "ready" / "python")
    made = tmp_path / "made" / "bin" / "python"
    base = interpreter(tmp_path / "base", f"mkdir -p {made.parent}; cp {python} {made}")
    tried = "python -c import acme; print('Acme', acme.__version__)"
    filled = ["python -m pip install --quiet acme==1", "python -m pip install --quiet --no-deps parts", tried]
    for before in ([f"base -m venv {tmp_path}/made"], []):  # the second time it is there
        make_environment(tmp_path / "made", str(base), STEPS, "acme", "Acme")
        assert (tmp_path / "asked").read_text().splitlines() == [*before, *filled]
        assert capsys.readouterr().out == f"rollout.options.python={made}\n"
        (tmp_path / "asked").unlink()


def test_a_step_that_fails_is_the_last_one(interpreter: Callable[..., Path], tmp_path: Path) -> None:
    python = interpreter(tmp_path / "made" / "bin" / "python", "exit 3")
    with pytest.raises(RunError, match=rf"^{python} ended with exit code 3"):
        make_environment(tmp_path / "made", str(python), STEPS, "acme", "Acme")
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
