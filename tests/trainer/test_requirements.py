"""Which engines and runtimes end a command before it loads anything."""

from types import SimpleNamespace

import pytest

from corerl.contracts.checks import Finding
from corerl.errors import ConfigError, ModelError
from corerl.trainer.requirements import require_engine, works_here


class Engine:
    """Options of a backend that has found this, and notes the keys it is asked about."""

    def __init__(self, *found):
        self.found, self.keys = found, []

    def examine(self, key, config, machine):
        self.keys.append(key)
        return self.found


def selected(options):
    return SimpleNamespace(options=options)


MISSING = Finding("error", "rollout.name", "there is no Speedy", "Run: corerl engine install speedy")
OLD = Finding("warning", "rollout.name", "Speedy is old")


def test_an_error_is_raised_with_its_remedy_and_other_findings_are_not():
    engine = Engine(OLD, MISSING)
    with pytest.raises(ConfigError, match=r"^rollout\.name: there is no Speedy\. Run: corerl engine install speedy$"):
        require_engine(None, selected(engine), selected(None))
    assert engine.keys == ["rollout.name"]
    require_engine(None, selected(Engine(OLD)), selected(None))
    require_engine(None, selected(None), selected(None))


def test_an_exception_that_was_found_is_raised_as_it_is():
    error = ModelError("no device")
    with pytest.raises(ModelError) as raised:
        require_engine(None, selected(Engine(error)), selected(None))
    assert raised.value is error


@pytest.mark.parametrize(("options", "here"), [(None, True), (object(), False)])
def test_a_runtime_without_options_works_on_this_machine(options, here):
    assert works_here(selected(options)) is here


@pytest.mark.parametrize("here", [True, False])
def test_an_engine_is_needed_here_if_the_runtime_says_so(here):
    runtime = selected(SimpleNamespace(works_here=here))
    assert works_here(runtime) is here
    engine = Engine(MISSING)
    if here:
        with pytest.raises(ConfigError):
            require_engine(None, selected(engine), runtime)
    else:
        require_engine(None, selected(engine), runtime)
        assert engine.keys == []
