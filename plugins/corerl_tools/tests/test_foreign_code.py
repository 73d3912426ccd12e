"""Whose code raised an error."""

from pathlib import Path

import pytest

from corerl.cli.main import run
from corerl.registry import load_object
from corerl_tools.foreign_code import raised_there


def test_an_error_of_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def outer(call):\n    return call()\n\n\ndef inner():\n    return [].nothing\n")
    with pytest.raises(AttributeError) as caught:
        load_object(f"{file}:inner")()
    assert raised_there(caught.value) == f"'list' object has no attribute 'nothing', in inner ({file}, line 6)"
    with pytest.raises(ZeroDivisionError) as caught_too:
        load_object(f"{file}:outer")(lambda: 1 / 0)
    assert raised_there(caught_too.value) == f"division by zero, in outer ({file}, line 2)"


def test_an_error_of_code_of_corerl_is_not_blamed_on_others() -> None:
    with pytest.raises(AttributeError) as caught:
        load_object(3)  # type: ignore[arg-type]
    assert raised_there(caught.value) is None


PRESETS = """
from corerl import hookimpl

@hookimpl
def register_presets(register):
    register("raises", lambda: 1 / 0)
    register("number", lambda: 3)
"""


@pytest.mark.parametrize(
    ("preset", "code", "message"),
    [
        ("raises", 1, "error: ZeroDivisionError: division by zero, in <lambda> ({file}, line 6)\n"),
        ("number", 2, "error: preset 'number' returned 3, and must return a mapping of sections\n"),
    ],
)
def test_the_mistake_of_a_preset_is_no_bug_of_corerl(
    preset: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "presets.py"
    file.write_text(PRESETS)
    assert run(["config", "show", "--plugin", str(file), f"preset={preset}"]) == code
    printed = capsys.readouterr().err
    assert printed.endswith(message.format(file=file)) and "this is a bug" not in printed


def test_a_plugin_that_is_no_python_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("")
    assert run(["config", "show", "--plugin", f"{tmp_path}/config.yaml"]) == 2
    assert "config.yaml is no Python file (*.py)" in capsys.readouterr().err
