"""Which configs, engines and runtimes end a command before it loads anything."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from corerl.contracts.checks import Finding
from corerl.contracts.config import AlgorithmConfig, ModelConfig, RolloutCorrectionConfig, TrainConfig, TrainerConfig
from corerl.errors import ConfigError, ModelError
from corerl.plugins import Plugins
from corerl.trainer.requirements import require_engine, require_makers, works_here


class Engine:
    """Options of a backend that has found this, and notes the keys it is asked about."""

    def __init__(self, *found):
        self.found, self.keys = found, []

    def examine(self, key, config, machine):
        self.keys.append(key)
        return self.found


def selected(options):
    return SimpleNamespace(options=options)


WITHOUT_PENALTY, WITH_PENALTY = SimpleNamespace(kl_penalty=None), SimpleNamespace(kl_penalty="low_var_kl")
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


@pytest.mark.parametrize(
    ("correction", "staleness", "key"),
    [
        ({}, 0, None),
        ({"rollout_is": "none"}, 2, None),
        ({"rollout_is": "token"}, 0, "algorithm.rollout_correction"),
        ({"rollout_rs": "token_k1"}, 0, "algorithm.rollout_correction"),
        ({"bypass_mode": True}, 0, "algorithm.rollout_correction"),
        ({"max_log_prob_diff": 0.1}, 0, "algorithm.rollout_correction"),
        ({}, 2, "trainer.max_staleness"),
    ],
)
def test_a_config_that_needs_correction_names_the_distribution(correction, staleness, key):
    algorithm = AlgorithmConfig(rollout_correction=RolloutCorrectionConfig(**correction))
    config = TrainConfig(ModelConfig("m"), algorithm=algorithm, trainer=TrainerConfig(max_staleness=staleness))
    refused = nullcontext() if key is None else pytest.raises(ConfigError, match=f"^{key}: .*pip install corerl-corr")
    with refused:
        require_makers(config, WITHOUT_PENALTY, Plugins(disable=["corerl-correction"]))
    require_makers(config, WITHOUT_PENALTY, Plugins())


@pytest.mark.parametrize(
    ("parts", "files", "key"),
    [
        (WITH_PENALTY, [], "algorithm.use_kl_in_reward"),
        (WITHOUT_PENALTY, ["a"], "data.val_files"),
        (WITHOUT_PENALTY, [], "trainer.max_restarts"),
    ],
)
def test_penalties_evaluations_and_restarts_name_the_distribution_that_makes_them(parts, files, key):
    config = TrainConfig(ModelConfig("m"))
    config.data.val_files = files
    with pytest.raises(ConfigError, match=f"^{key}: needs .*: pip install corerl-torch$"):
        require_makers(config, parts, Plugins(disable=["corerl-torch"]))
    require_makers(config, parts, Plugins())
