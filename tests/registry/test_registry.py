"""Names, options, and objects named directly."""

import contextlib
import dataclasses
import functools
import gc
from pathlib import Path
from typing import Any

import pytest

from corerl import option
from corerl.contracts.agents import AgentFactory
from corerl.contracts.scorers import Scorer
from corerl.errors import ConfigError, NameClashError, PluginError, UnknownNameError
from corerl.registry import Entry, Owner, Registry, Selected, load_object

THIS = Path(__file__)


@dataclasses.dataclass
class Options:
    strict: bool = option(False, "compare as text")
    weight: float = option(1.0, "of the score", ge=0, le=2)


@dataclasses.dataclass
class Required:
    port: int = option(help="of the server", ge=1)


def score(response: str, ground_truth: str, data_source: str, extra_info: Any, *, options: Options) -> float:
    return options.weight * (response == ground_truth)


def bare(response: str, ground_truth: str, data_source: str, extra_info: Any) -> float:
    return 0.25


def scorers(*entries: tuple[str, type | None]) -> Registry[Any]:
    registry: Registry[Any] = Registry("scorer", Scorer, "reward.scorer")
    for name, options in entries:
        registry.add(Entry[Any]("scorer", name, score, Owner("acme", "1.0"), options=options))
    return registry


@pytest.mark.parametrize("last", ["", "1 / 0"])
def test_a_part_is_imported_without_the_garbage_collector_which_is_on_again_then(tmp_path: Path, last: str) -> None:
    file = tmp_path / "part.py"
    file.write_text(
        f"import gc\nfrom pathlib import Path\nPath({str(tmp_path)!r}, str(gc.isenabled())).touch()\n{last}"
    )
    with contextlib.suppress(ZeroDivisionError):
        load_object(f"{file}:gc")
    assert (tmp_path / "False").exists()
    assert gc.isenabled()


def test_a_name_selects_with_default_options() -> None:
    selected = scorers(("exact", Options)).select("exact")
    assert selected.options == Options()
    assert selected.load()("4", "4", "", {}) == 1.0


def test_a_mapping_selects_with_its_options() -> None:
    selected = scorers(("exact", Options)).select({"name": "exact", "weight": 0.5})
    assert selected.load()("4", "4", "", {}) == 0.5


def test_without_options_the_target_is_loaded_as_it_is() -> None:
    registry: Registry[Any] = Registry("scorer", Scorer, "reward.scorer")
    registry.add(Entry[Any]("scorer", "bare", bare, Owner("acme", "1.0")))
    assert registry.select("bare").load() is bare


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": "exact", "wieght": 1}, r"reward.scorer.wieght: unknown key; did you mean reward.scorer.weight\?"),
        ({"name": "exact", "weight": "x"}, r"reward.scorer.weight: must be a number, not 'x'"),
        ({"name": "exact", "weight": 3}, r"reward.scorer.weight: must be at most 2, not 3"),
        ({"name": "bare", "weight": 3}, r"reward.scorer.weight: scorer 'bare' has no options"),
        ({"name": "server"}, r"reward.scorer.port: must be given: an integer"),
        ({"weight": 3}, r"reward.scorer: must be the name of a scorer, or a mapping with 'name'"),
        ({"name": 3}, r"reward.scorer: must be the name of a scorer"),
        (["exact"], r"reward.scorer: must be the name of a scorer"),
        (None, r"reward.scorer: must be the name of a scorer"),
    ],
)
def test_wrong_options_are_errors_with_their_key(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scorers(("exact", Options), ("bare", None), ("server", Required)).select(value)


@dataclasses.dataclass
class MadeOfOthers:
    parts: list[str] = option(help="scorers", factory=list)

    def resolve(self, select: Any, key: str) -> None:
        self.loaded = [select(part, f"{key}.parts[{index}]").load() for index, part in enumerate(self.parts)]


def test_options_that_name_further_entries_are_resolved() -> None:
    registry = scorers(("exact", Options), ("both", MadeOfOthers))
    [part] = registry.select({"name": "both", "parts": ["exact"]}).options.loaded
    assert part.func is score
    with pytest.raises(UnknownNameError, match=r"reward.scorer.parts\[0\]: unknown scorer 'exakt'"):
        registry.select({"name": "both", "parts": ["exakt"]})


def test_an_unknown_name_is_an_error_with_its_key() -> None:
    with pytest.raises(
        UnknownNameError, match=r"^tracking.loggers\[1\]: unknown scorer 'exakt' \(did you mean 'exact'"
    ):
        scorers(("exact", None)).select("exakt", "tracking.loggers[1]")


def test_name_and_options_under_two_keys_are_named_by_theirs() -> None:
    registry = scorers(("exact", Options))
    with pytest.raises(ConfigError, match=r"^rollout.options.weight: must be at least 0, not -1"):
        registry.select_named("exact", {"weight": -1}, name_key="rollout.name", options_key="rollout.options")
    with pytest.raises(UnknownNameError, match=r"^rollout.name: unknown"):
        registry.select_named("no", {}, name_key="rollout.name", options_key="rollout.options")


def test_the_message_of_a_clash_names_every_owner() -> None:
    registry = scorers(("exact", None))
    for owner in (Owner("bolt", "2.0"), Owner("./mine.py")):
        with pytest.raises(NameClashError):
            registry.add(Entry[Any]("scorer", "exact", score, owner))
    with pytest.raises(NameClashError, match=r"by acme 1\.0 and by bolt 2\.0 and by \./mine\.py: disable one of them"):
        registry.select("exact")


def test_a_later_override_settles_a_clash() -> None:
    registry = scorers(("exact", None))
    with pytest.raises(NameClashError):
        registry.add(Entry[Any]("scorer", "exact", score, Owner("bolt")))
    winner = Entry[Any]("scorer", "exact", score, Owner("judge"))
    registry.add(winner, override=True)
    assert registry.get("exact") is winner


USER_FILE = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nowhere import Tensor


@dataclass
class Options:
    bonus: float = 0.5


def with_options(response: Tensor, ground_truth, data_source, extra_info, *, options: Options):
    return options.bonus


def bare(response, ground_truth, data_source, extra_info):
    return 0.25


class Callable:
    def __init__(self, response, ground_truth, data_source, extra_info, *, options: Options):
        self.bonus = options.bonus


def badly_annotated(response, *, options: dict):
    return 0.0
"""


@pytest.fixture
def user_file(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    return str(file)


def test_a_function_in_a_file_is_named_directly(user_file: str) -> None:
    selected = scorers().select(f"{user_file}:bare")
    assert selected.load()("", "", "", {}) == 0.25
    assert str(selected.entry.owner) == user_file


def test_options_of_an_object_named_directly_are_those_of_its_annotation(user_file: str) -> None:
    registry = scorers()
    assert registry.select(f"{user_file}:with_options").load()("", "", "", {}) == 0.5
    assert registry.select({"name": f"{user_file}:with_options", "bonus": 2}).load()("", "", "", {}) == 2.0
    assert registry.select({"name": f"{user_file}:Callable", "bonus": 3}).load()(*"abcd").bonus == 3.0
    with pytest.raises(ConfigError, match=r"reward.scorer.bonsu: unknown key; did you mean reward.scorer.bonus\?"):
        registry.select({"name": f"{user_file}:with_options", "bonsu": 2})
    with pytest.raises(ConfigError, match="has no options"):
        registry.select({"name": f"{user_file}:bare", "bonus": 2})


WRONG_FILE = """
number = 3

def three(response, ground_truth, data_source): ...

def options_first(options, response, ground_truth, data_source, extra_info): ...

def no_such_options(response, ground_truth, data_source, extra_info, *, options: "Opshuns"): ...
"""


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("wrong.py:number", "is 3, and must be a function or a class"),
        (
            "wrong.py:three",
            r"takes \(response, ground_truth, data_source\), and is called with \(response, .*extra_info\)",
        ),
        ("wrong.py:options_first", r"takes \(options, .*missing a required argument: 'extra_info'"),
        ("wrong.py:no_such_options", "the annotation of its parameter 'options': name 'Opshuns' is not defined"),
        ("./wrong:three", r"a file is named with its ending: wrong\.py:three"),
        ("wrong:three", r"a file is named with its ending: \./wrong\.py:three"),
    ],
)
def test_an_object_that_cannot_be_called_is_refused_when_a_config_names_it(
    reference: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text(WRONG_FILE)
    with pytest.raises(PluginError, match=message):
        scorers().select(reference)


def test_a_relative_file_is_looked_up_from_the_working_directory(
    user_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(user_file).parent)
    assert scorers().get("./mine.py:bare").load()("", "", "", {}) == 0.25


def test_an_object_in_an_installed_module_is_named_directly() -> None:
    assert scorers().get("functools:partial").load() is functools.partial


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("mine.py:bear", r"cannot be imported: AttributeError: .*mine.py has no 'bear' \(did you mean 'bare'\?\)"),
        ("mine.py:badly_annotated", "its parameter 'options' must be annotated with a dataclass"),
        ("other.py:bare", "FileNotFoundError: no file .*other.py"),
    ],
)
def test_what_cannot_be_imported_directly_is_an_error(user_file: str, attribute: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        scorers().select(str(Path(user_file).parent / attribute))


def test_a_module_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(PluginError, match="cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"):
        scorers().get("no_such_module:score")


def test_a_target_that_cannot_be_imported_names_owner_and_cause() -> None:
    entry: Entry[Any] = Entry("scorer", "exact", "no_such_module:score", Owner("acme", "1.0"))
    with pytest.raises(
        PluginError, match=r"scorer 'exact' of acme 1\.0 cannot be imported from no_such_module:score: Mod"
    ):
        entry.load()


def plain() -> None: ...


def test_a_selection_without_options_binds_nothing() -> None:
    entry: Entry[Any] = Entry("scorer", "x", plain, Owner("acme"))
    assert Selected(entry).load() is plain


async def an_agent(task, model): ...


async def with_other_arguments(task, model, tools): ...


def test_an_async_function_is_called_as_what_its_factory_makes() -> None:
    def selected(function: Any) -> Selected[Any]:
        return Selected(Entry("agent", "mine", function, Owner("acme", "1"), "x"), contract=AgentFactory)

    assert selected(an_agent).load().func is an_agent
    with pytest.raises(
        PluginError, match=r"^agent 'mine' takes \(task, model, tools\), and is called with \(task, model\)"
    ):
        selected(with_other_arguments).load()


@pytest.mark.parametrize(
    ("code", "cause"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(0)", "SystemExit: 0")],
)
def test_the_place_of_an_error_in_a_file_is_named(tmp_path: Path, code: str, cause: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"\n\n{code}\n")
    with pytest.raises(PluginError) as raised:
        scorers().select(f"{file}:score")
    assert str(raised.value).endswith(f"cannot be imported: {cause} ({file}, line 3)")
