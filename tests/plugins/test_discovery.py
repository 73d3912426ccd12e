"""What becomes of installed distributions and of files with hooks."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corerl.errors import ConfigError, NameClashError, PluginError, UnknownNameError
from corerl.plugins import Plugins, load_plugins
from corerl.registry.modules import load_file

MakeDistribution = Callable[..., Path]

SCORER = """
from corerl import hookimpl

@hookimpl
def register_scorers(register):
    register("{name}", "{target}", summary="{summary}", override={override})
"""


def scorer(name: str, target: str = "nowhere:at_all", summary: str = "", override: bool = False) -> str:
    return SCORER.format(name=name, target=target, summary=summary, override=override)


def status(plugins: Plugins, name: str) -> tuple[str, str]:
    return next((record.status, record.error) for record in plugins.records if record.name == name)


def test_an_installed_distribution_registers_under_its_own_name_and_version(
    make_distribution: MakeDistribution,
) -> None:
    make_distribution("acme-rewards", "1.5", scorer("trivia", summary="Acme's trivia"))
    plugins = Plugins()
    entry = plugins.registries.scorers.get("trivia")
    assert (entry.owner.distribution, entry.owner.version) == ("acme-rewards", "1.5")
    assert str(entry.owner) == "acme-rewards 1.5"
    assert (entry.kind, entry.summary) == ("scorer", "Acme's trivia")
    assert status(plugins, "acme-rewards") == ("ok", "")


def test_a_target_is_imported_when_it_is_loaded_and_not_before(make_distribution: MakeDistribution) -> None:
    site = make_distribution("acme", "1.0", scorer("trivia", target="acme_heavy_plugin:score"))
    (site / "acme_heavy_plugin.py").write_text("def score(*args):\n    return 0.25\n")
    entry = Plugins().registries.scorers.get("trivia")
    assert "acme_heavy_plugin" not in sys.modules
    target = entry.load()
    assert "acme_heavy_plugin" in sys.modules
    assert target("", "", "", {}) == 0.25


LATE_OPTIONS = """
from dataclasses import dataclass
from corerl import option

@dataclass
class Options:
    strict: bool = option(False, "compare as text")

plain = 3
"""


def test_options_given_as_text_are_imported_when_they_are_selected_and_not_before(
    make_distribution: MakeDistribution,
) -> None:
    site = make_distribution(
        "acme", "1.0", scorer("trivia").replace("summary=", "options='acme_late:Options', summary=")
    )
    (site / "acme_late.py").write_text(LATE_OPTIONS)
    scorers = Plugins().registries.scorers
    assert "acme_late" not in sys.modules
    with pytest.raises(ConfigError, match=r"^reward.scorer.strictt: unknown key; did you mean reward.scorer.strict\?"):
        scorers.select({"name": "trivia", "strictt": True})
    assert scorers.select({"name": "trivia", "strict": True}).options.strict is True
    assert [field.name for field in scorers.get("trivia").option_fields()] == ["strict"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "acme_late:Option",
            r"'trivia' of acme 1.0 cannot be imported from acme_late:Option: .*did you mean 'Options'",
        ),
        ("acme_later:Options", r"'trivia' of acme 1.0 cannot be imported from acme_later:Options: ModuleNotFoundError"),
        ("acme_late:plain", r"^the scorer 'trivia' must have a dataclass as its options, not 3"),
    ],
)
def test_options_given_as_text_that_are_none_are_refused_when_they_are_selected(
    make_distribution: MakeDistribution, options: str, message: str
) -> None:
    site = make_distribution("acme", "1.0", scorer("trivia").replace("summary=", f"options='{options}', summary="))
    (site / "acme_late.py").write_text(LATE_OPTIONS)
    scorers = Plugins().registries.scorers
    with pytest.raises(PluginError, match=message):
        scorers.select("trivia")


def test_a_clash_names_both_owners_and_poisons_that_name_only(make_distribution: MakeDistribution) -> None:
    make_distribution("acme", "1.0", scorer("trivia"))
    two = scorer("trivia") + scorer("other").replace("register_scorers(", "register_trackers(")
    make_distribution("zenith", "2.0", two)
    plugins = Plugins()
    with pytest.raises(NameClashError, match=r"'trivia' is registered by acme 1\.0 and by zenith 2\.0: disable one"):
        plugins.registries.scorers.get("trivia")
    assert plugins.registries.trackers.get("other").owner.distribution == "zenith"
    assert plugins.registries.runtimes.get("local").owner.distribution == "corerl"
    assert status(plugins, "acme")[0] == status(plugins, "zenith")[0] == "clash"
    assert Plugins(disable=["zenith"]).registries.scorers.get("trivia").owner.distribution == "acme"


@pytest.mark.parametrize(("overriding", "plain"), [("acme", "zenith"), ("zenith", "acme")])
def test_an_override_wins_whichever_is_loaded_first(
    make_distribution: MakeDistribution, overriding: str, plain: str
) -> None:
    make_distribution(overriding, "1.0", scorer("trivia", override=True))
    make_distribution(plain, "1.0", scorer("trivia"))
    plugins = Plugins()
    assert plugins.registries.scorers.get("trivia").owner.distribution == overriding
    assert status(plugins, overriding) == status(plugins, plain) == ("ok", "")


def test_two_overrides_of_one_name_clash(make_distribution: MakeDistribution) -> None:
    make_distribution("acme", "1.0", scorer("trivia", override=True))
    make_distribution("bolt", "1.0", scorer("trivia"))
    make_distribution("zenith", "1.0", scorer("trivia", override=True))
    with pytest.raises(NameClashError, match=r"by acme 1\.0 and by zenith 1\.0"):
        Plugins().registries.scorers.get("trivia")


def test_a_file_without_the_name_of_its_function_is_answered_with_the_form() -> None:
    with pytest.raises(UnknownNameError, match=r"'./mine\.py': of a file, .*: ./mine\.py:FUNCTION; known"):
        Plugins().registries.scorers.get("./mine.py")


def test_an_unknown_name_is_answered_with_the_nearest_one(make_distribution: MakeDistribution) -> None:
    make_distribution("acme", "1.0", scorer("trivia"))
    with pytest.raises(UnknownNameError, match=r"unknown scorer 'trivai' \(did you mean 'trivia'\?\); known: trivia"):
        Plugins().registries.scorers.get("trivai")


def test_a_known_name_that_is_not_installed_says_what_to_install(core_alone: None, abacus: None) -> None:
    trackers = Plugins().registries.trackers
    with pytest.raises(
        UnknownNameError,
        match=r"'abacus': it comes with corerl-abacus, which is not installed \(pip install corerl-abacus\)",
    ):
        trackers.get("abacus")
    with pytest.raises(UnknownNameError, match=r"did you mean 'abacus'\?"):
        trackers.get("abcaus")


def test_a_known_name_of_a_disabled_plugin_says_so(make_distribution: MakeDistribution, abacus: None) -> None:
    make_distribution("corerl-abacus", "0.1", scorer("x"))
    with pytest.raises(UnknownNameError, match="comes with corerl-abacus, which is disabled"):
        Plugins(disable=["corerl-abacus"]).registries.trackers.get("abacus")


def test_a_known_name_that_the_installed_version_lacks_names_that_version(
    make_distribution: MakeDistribution, abacus: None
) -> None:
    make_distribution("corerl-abacus", "0.1", scorer("x"))
    with pytest.raises(UnknownNameError, match=r"corerl-abacus, which is installed in version 0\.1 without it"):
        Plugins().registries.trackers.get("abacus")


BROKEN = {
    "an import that fails": (
        "import no_such_module_at_all",
        r"ModuleNotFoundError: No module named 'no_such_module_at_all' \(.*acme_plugin.py, line 1\)",
    ),
    "a syntax error": ("def (", r"SyntaxError: .*acme_plugin.py, line 1"),
    "an exit at import": ("raise SystemExit(3)", r"SystemExit: 3 \(.*acme_plugin.py, line 1\)"),
    "a misspelt hook": (
        "from corerl import hookimpl\n@hookimpl\ndef register_scorer(register): pass",
        r"there is no hook 'register_scorer' \(did you mean 'register_scorers'\?\)",
    ),
    "an argument that the hook does not have": (
        "from corerl import hookimpl\n@hookimpl\ndef register_scorers(registry): pass",
        "register_scorers takes 'registry', and the hook gives register",
    ),
    "a forgotten mark": (
        "def register_scorers(register): pass",
        "the function register_scorers is not marked with @hookimpl",
    ),
    "an exception in a hook": (
        "from corerl import hookimpl\n@hookimpl\ndef register_scorers(register):\n    1 / 0",
        r"ZeroDivisionError: division by zero \(.*acme_plugin.py, line 4\)",
    ),
    "an argument that no kind has": (
        scorer("a").replace("summary=", "sumary="),
        r"the scorer 'a' declares the unknown fact 'sumary' \(did you mean 'summary'\?\); known: .*data_sources$",
    ),
    "a fact of another kind": (
        scorer("a").replace("summary=", "distributed=True, summary="),
        "the scorer 'a' declares the unknown fact 'distributed'",
    ),
    "a fact of a wrong type": (
        scorer("a").replace("summary=", "data_sources='gsm8k', summary="),
        "the scorer 'a': data_sources must be a tuple, not 'gsm8k'",
    ),
    "a need of another kind": (
        scorer("a").replace("summary=", "needs={'groups'}, summary="),
        "the scorer 'a' declares the unknown need 'groups'; known: none",
    ),
    "an unknown need": (
        "from corerl import hookimpl\n@hookimpl\ndef register_advantage_estimators(register):\n"
        "    register('a', 'b:c', needs={'critic', 'group'})",
        r"declares the unknown need 'group' \(did you mean 'groups'\?\); known: groups, critic,",
    ),
    "a target without its attribute": (
        scorer("a", target="acme.scorer"),
        "must name its target as 'package.module:attribute'",
    ),
    "a name that a config could not write": (scorer("a:b"), "needs a name without spaces"),
    "options without their attribute": (
        scorer("a").replace("summary=", "options='acme.options', summary="),
        "must name its options as 'package.module:attribute', not 'acme.options'",
    ),
    "options that are no dataclass": (
        scorer("a").replace("summary=", "options=dict, summary="),
        "must have a dataclass as its options",
    ),
}


@pytest.mark.parametrize(("code", "error"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_recorded_and_hides_nothing_else(
    make_distribution: MakeDistribution, code: str, error: str
) -> None:
    make_distribution("acme", "1.0", code)
    make_distribution("zenith", "1.0", scorer("trivia"))
    plugins = load_plugins()
    state, message = status(plugins, "acme")
    assert state == "broken"
    assert re.search(error, message), message
    assert "\n" not in message
    assert plugins.registries.scorers.get("trivia").owner.distribution == "zenith"


def test_a_broken_plugin_is_named_when_a_name_is_missing(make_distribution: MakeDistribution) -> None:
    make_distribution("acme", "1.0", "1 / 0")
    with pytest.raises(UnknownNameError, match=r"may be of a broken plugin: acme \(ZeroDivisionError"):
        Plugins().registries.scorers.get("trivia")


def test_a_hook_that_fails_half_way_registers_nothing(make_distribution: MakeDistribution) -> None:
    code = (
        "from corerl import hookimpl\n@hookimpl\ndef register_scorers(register):\n    register('a', 'b:c')\n    1 / 0"
    )
    make_distribution("acme", "1.0", code)
    assert "a" not in Plugins().registries.scorers


def test_an_entry_point_must_be_named_like_its_distribution(make_distribution: MakeDistribution) -> None:
    make_distribution("acme", "1.0", scorer("trivia"), entry_point="rewards")
    assert status(Plugins(), "acme") == (
        "broken",
        "its entry point must be named like the distribution, acme, not rewards",
    )


def test_plugins_are_disabled_by_argument_and_by_variable(
    make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_distribution("acme-rewards", "1.0", "1 / 0")
    assert status(Plugins(disable=["Acme_Rewards"]), "acme-rewards") == ("disabled", "")
    monkeypatch.setenv("CORERL_DISABLE_PLUGINS", " acme-rewards ,")
    assert status(Plugins(), "acme-rewards") == ("disabled", "")


def test_disabling_a_plugin_that_does_not_exist_is_an_error(make_distribution: MakeDistribution, abacus: None) -> None:
    make_distribution("acme", "1.0", scorer("trivia"))
    with pytest.raises(PluginError, match=r"plugins.disable: no plugin is called 'amce' \(did you mean 'acme'\?\)"):
        Plugins(disable=["amce"])
    Plugins(disable=["corerl-abacus"])  # known, though not installed


def test_a_file_with_hooks_is_a_plugin(core_alone: None, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(scorer("trivia"))
    plugins = load_plugins((str(file),))
    assert plugins.registries.scorers.get("trivia").owner.distribution == str(file)


def test_a_file_given_twice_under_two_spellings_is_loaded_once(
    core_alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(scorer("trivia"))
    monkeypatch.chdir(tmp_path)
    plugins = Plugins(load=["mine.py", "./mine.py", str(tmp_path / "mine.py")])
    assert [record.status for record in plugins.records if record.name.endswith("mine.py")] == ["ok"]


@pytest.mark.parametrize(
    ("code", "error"), [(None, "no file"), ("import no_such_module_at_all", "ModuleNotFoundError")]
)
def test_a_broken_file_that_was_asked_for_is_an_error(
    core_alone: None, tmp_path: Path, code: str | None, error: str
) -> None:
    file = tmp_path / "mine.py"
    if code is not None:
        file.write_text(code)
    with pytest.raises(PluginError, match=rf"plugin .*mine.py is broken: .*{error}"):
        load_plugins((str(file),))
    assert status(Plugins(load=[str(file)]), str(file))[0] == "broken"  # for `corerl plugins list`


def test_loading_twice_registers_once(core_alone: None, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    calls = tmp_path / "calls"
    file.write_text(scorer("trivia") + f"    open({str(calls)!r}, 'a').write('x')\n")
    assert load_plugins((str(file),)) is load_plugins((str(file),))
    assert calls.read_text() == "x"


def test_life_cycle_hooks_reach_every_plugin(core_alone: None, tmp_path: Path) -> None:
    files = []
    for name in "ab":
        file = tmp_path / f"{name}.py"
        file.write_text(
            "from corerl import hookimpl\nseen = []\n"
            "@hookimpl\ndef step_ended(step, metrics):\n    seen.append((step, metrics))\n"
        )
        files.append(str(file))
    plugins = Plugins(load=files)
    plugins.hook.step_ended(run=None, step=3, metrics={"reward": 0.5})
    assert [load_file(file).seen for file in files] == [[(3, {"reward": 0.5})]] * 2


def test_the_core_works_without_any_plugin(core_alone: None) -> None:
    plugins = Plugins()
    assert [record.name for record in plugins.records if record.status == "ok"] == ["corerl"]
    assert [entry.name for entry in plugins.registries.runtimes] == ["local"]
    with pytest.raises(UnknownNameError, match="known: none, because no installed plugin registers any"):
        plugins.registries.scorers.get("anything")
