"""The graders of ``corerl eval``: scores, equality of answers, and a scorer that reads more."""

from collections.abc import Mapping, Sequence

from corerl.contracts.config import RewardConfig, TrainConfig
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import RequestError, RunError
from corerl.plugins import Plugins
from corerl.registry import Selected
from corerl.registry.parts import resolve_parts
from corerl.rollout.scoring import scorers_or_reasons
from corerl_tools.evaluation.files import Response
from corerl_tools.evaluation.reading import better_reader, readings
from corerl_tools.score.rescoring import rescore, scorers_of


class Grading:
    """The scorers of some responses.

    Args:
        strict: a data source without a scorer is an error; otherwise its answers are compared as text.

    Raises:
        RequestError: the config's ``reward`` is wrong.
    """

    def __init__(self, responses: Sequence[Response], config: TrainConfig, plugins: Plugins, *, strict: bool) -> None:
        self._config, self._plugins = config, plugins
        self._scorers: Mapping[str, Selected[Scorer]]
        if strict:
            self._scorers = scorers_of(responses, config, plugins)
        else:
            sources = dict.fromkeys(response.data_source for response in responses)
            parts = resolve_parts(config, plugins.registries)
            self._scorers, _ = scorers_or_reasons(sources, parts, plugins.registries)

    def grade(self, responses: Sequence[Response]) -> list[RewardResult]:
        """One result for each response; errors as for :func:`~corerl_tools.score.rescoring.rescore`."""
        return rescore(responses, self._scorers, self._config, self._plugins)

    def regrade(self, responses: Sequence[Response]) -> list[RewardResult]:
        """As :meth:`grade`, for responses with other ground truths: no score without a scorer, or if a model grades."""
        known = [response for response in responses if response.data_source in self._scorers]
        if not known or self._config.reward.manager != RewardConfig().manager:
            return [RewardResult(None)] * len(responses)
        graded = iter(self.grade(known))
        return [next(graded) if each.data_source in self._scorers else RewardResult(None) for each in responses]

    def hint(self, source: str, responses: Sequence[Response], results: Sequence[RewardResult]) -> str | None:
        """A scorer that reads more of the responses of a data source, in one line; None if the present one does."""
        pairs = [pair for pair in zip(responses, results, strict=True) if pair[0].data_source == source]
        own, given = [response for response, _ in pairs], [result for _, result in pairs]
        used, reading = self._scorers.get(source), readings(own, given).get(source)
        if used is None or reading is None or not reading.is_suspicious or not used.entry.facts.data_sources:
            return None
        registries = self._plugins.registries
        try:
            manager = registries.reward_managers.select(RewardConfig().manager)
            best = better_reader(own, given, used, registries.scorers, self._config.reward, manager)
        except (RequestError, RunError):  # a scorer that cannot be tried here is no hint
            return None
        return None if best is None else best.line()
