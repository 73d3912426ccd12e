"""Every hook has an example in docs/reference/hooks.md: a plugin that works."""

from pathlib import Path

import pytest

from corerl.plugins import Plugins
from corerl_testing.checks import checks_of, outcome
from scripts.pages.reference import hook_examples

EXAMPLES = hook_examples()


def test_every_hook_has_an_example(core_alone: None) -> None:
    assert set(EXAMPLES) == set(Plugins().hooks)


@pytest.mark.parametrize("hook", EXAMPLES)
def test_the_example_is_a_working_plugin(hook: str, core_alone: None, tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(EXAMPLES[hook])
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
