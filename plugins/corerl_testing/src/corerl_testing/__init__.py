"""The conformance kit: named checks of registered entries, for pytest and for ``corerl plugins check``.

A plugin's test file needs two statements::

    from corerl_testing import conformance_tests

    test_conformance = conformance_tests("acme-corerl")
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from corerl.errors import PluginError

if TYPE_CHECKING:
    from corerl_testing.checks import Check, CheckFailed, CheckSkipped, checks_of

__all__ = ["Check", "CheckFailed", "CheckSkipped", "checks_of", "conformance_tests"]


def conformance_tests(
    name: str, *, plugin: str | None = None, options: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable[..., None]:
    """A pytest test function with one test for each check of ``name``.

    Args:
        name: a distribution, or a registered name, as for ``corerl plugins check``.
        plugin: a Python file with hooks to load in addition.
        options: entry name -> its options, for entries whose options lack defaults.

    Raises:
        UnknownNameError: there is no distribution and no registered name ``name``.
        PluginError: the plugin is broken or disabled, or registers nothing.
        ConfigError: an option is unknown, of the wrong type or out of range, or its entry is not checked.
    """
    import pytest

    from corerl.plugins import load_plugins
    from corerl_testing.checks import CheckSkipped, checks_of, share_options
    from corerl_tools.plugin_lists import find

    loaded = load_plugins(() if plugin is None else (plugin,))
    fields = {registry.kind: field for field, registry in loaded.registries}
    record, items = find(loaded, name)
    loaded.raise_if_broken([record.name] if record else [])
    given = share_options([entry for _, entry in items], options or {})
    checks = [check for item, own in zip(items, given, strict=True) for check in checks_of(*item, own)]
    if not checks:
        why = f", because it is {record.status}" if record and record.status != "ok" else ""
        raise PluginError(f"{name} registers nothing that could be checked{why}")

    @pytest.mark.parametrize(
        "check", [pytest.param(check, id=f"{fields[check.kind]}/{check.entry}/{check.name}") for check in checks]
    )
    def test_conformance(check: "Check") -> None:
        try:
            check.run()
        except CheckSkipped as skipped:
            pytest.skip(str(skipped))

    return test_conformance


def __getattr__(name: str) -> Any:
    """Imported on use: every command imports the plugin's module, which is in this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from corerl_testing import checks

    return getattr(checks, name)
