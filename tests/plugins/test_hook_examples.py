"""Every hook's docstring holds a plugin that works."""

import inspect
import textwrap
from pathlib import Path

import pluggy
import pytest

from corerl import hookspecs
from corerl.plugins import Plugins
from corerl_testing.checks import checks_of, outcome

_MANAGER = pluggy.PluginManager("corerl")
HOOKS = [name for name in vars(hookspecs) if _MANAGER.parse_hookspec_opts(hookspecs, name) is not None]


def example_of(hook: str) -> str:
    documentation = inspect.getdoc(getattr(hookspecs, hook)) or ""
    return textwrap.dedent(documentation.partition("Example::\n")[2])


def test_there_is_a_hook_for_every_registry(core_alone: None) -> None:
    registries = Plugins().registries
    assert {hookspecs.registration_hook(name) for name, _ in registries} == {
        hook for hook in HOOKS if hook.startswith("register_")
    }


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_is_a_working_plugin(hook: str, core_alone: None, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(example_of(hook))
    plugins = Plugins(load=[str(file)])
    record = plugins.records[-1]
    assert (record.status, record.error) == ("ok", "")
    if hook.startswith("register_"):
        ((registry_name, entry),) = record.entries
        assert registry_name == hook.removeprefix("register_")
        assert getattr(plugins.registries, registry_name).get(entry.name) is entry
        if not isinstance(entry.target, str):  # the others name packages that do not exist
            results = list(map(outcome, checks_of(getattr(plugins.registries, registry_name), entry)))
            assert {result.check for result in results if result.status == "ok"} >= {"summary", "contract"}
            assert [result for result in results if result.status == "failed"] == []
    elif hook == "add_kinds":
        assert plugins.registries.samplers.get("first").load()(2) == [0, 1]
    else:
        implementations = getattr(plugins.hook, hook).get_hookimpls()
        assert [implementation.plugin_name for implementation in implementations] == [str(file)]
