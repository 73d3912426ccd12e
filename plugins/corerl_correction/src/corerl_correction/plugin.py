"""The corrector and the loss term of ``algorithm.rollout_correction``, and the rules between its keys."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from corerl import hookimpl

if TYPE_CHECKING:
    from corerl.contracts.config import TrainConfig
    from corerl.contracts.objective import LossTerm
    from corerl.contracts.throughput import ModelShape
    from corerl.errors import ConfigError
    from corerl_correction.corrector import ImportanceCorrector


@hookimpl
def config_errors(config: "TrainConfig") -> "Iterator[ConfigError]":
    from corerl_correction.rules import violations

    return violations(config)


@hookimpl
def make_rollout_corrector(config: "TrainConfig", shape: "ModelShape") -> "ImportanceCorrector":
    from corerl.models import compute_dtype, resolve_device
    from corerl_correction.correction import largest_difference, resolve_level
    from corerl_correction.corrector import ImportanceCorrector

    correction = resolve_level(config.algorithm.rollout_correction, config.trainer.max_staleness)
    most = correction.max_log_prob_diff
    if most is None:
        dtype = compute_dtype(config.model, resolve_device(config.actor.device))
        quantized = config.rollout.options.get("quantization", "none") != "none"
        most = largest_difference(dtype, shape.layers, config.rollout.temperature, quantized=quantized)
    return ImportanceCorrector(correction, most)


@hookimpl
def loss_terms(config: "TrainConfig") -> "Iterable[LossTerm]":
    if not config.algorithm.rollout_correction.score_centering:
        return ()
    from corerl_correction.centering import ScoreCentering
    from corerl_correction.correction import resolve_level

    correction = resolve_level(config.algorithm.rollout_correction, config.trainer.max_staleness)
    return [ScoreCentering(correction, config.rollout.temperature)]
