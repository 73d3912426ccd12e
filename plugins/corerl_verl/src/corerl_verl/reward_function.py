"""verl's reward functions: scorer ``verl`` and reward manager ``verl_batch``.

::

    def compute_score(data_source, solution_str, ground_truth, extra_info=None): ...

    reward: {scorer: {name: verl, path: ./my_reward.py, function: compute_score}}

The arguments are passed by name, as verl passes them. The function may be ``async``. One for a whole batch, with
``data_sources``, ``solution_strs``, ``ground_truths`` and ``extra_infos``, is called by the manager ``verl_batch``.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import PluginError
from corerl.registry import load_object
from corerl.registry.coroutines import blocking
from corerl_rewards.batch import BatchRewardManager
from corerl_rewards.options import BatchOptions
from corerl_verl.options import VerlBatchOptions, VerlFunctionOptions

_PARTS = (int, float, bool)


@dataclass(frozen=True)
class _Adapted:
    """The loaded function, plain or ``async``, and the names of its arguments."""

    call: Callable[..., Any]
    names: frozenset[str]
    any_name: bool

    def __call__(self, **arguments: Any) -> Any:
        taken = arguments if self.any_name else {name: arguments[name] for name in arguments if name in self.names}
        return blocking(self.call)(**taken)


@cache
def _load(path: str, function: str) -> _Adapted:
    """
    Raises:
        PluginError: the function cannot be imported.
    """
    try:
        call = load_object(f"{path}:{function}")
    except Exception as error:
        raise PluginError(f"{path}:{function} cannot be imported: {type(error).__name__}: {error}") from error
    parameters = inspect.signature(call).parameters.values()
    any_name = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return _Adapted(call, frozenset(parameter.name for parameter in parameters), any_name)


def verl(
    response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any], options: VerlFunctionOptions
) -> Any:
    """The score of verl's function, which gets ``solution_str``, ``ground_truth``, ``data_source`` and ``extra_info``.

    Of a mapping, numbers are components and ``pred`` is the extracted answer; other texts are left out. As in verl, a
    list's first entry is the score.

    Raises:
        PluginError: the function cannot be imported.
        ValueError: a mapping without ``score``.
    """
    function = _load(options.path, options.function)
    result = function(
        data_source=data_source,
        solution_str=response,
        ground_truth=ground_truth,
        extra_info=dict(extra_info),
        **_of_model(options),
        **options.kwargs,
    )
    return score_of(result)


def _of_model(options: VerlFunctionOptions) -> dict[str, Any]:
    """verl's arguments for functions that ask a reward model."""
    if options.router is None:
        return {}
    tokenizer = None if options.reward_model is None else _tokenizer(options.reward_model)
    return {"reward_router_address": options.router, "reward_model_tokenizer": tokenizer}


@cache
def _tokenizer(path: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


def score_of(result: Any) -> Any:
    """A result of verl's function as CoreRL takes it."""
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"a mapping without 'score': {sorted(map(str, result))}")
        numbers = {name: float(value) for name, value in result.items() if isinstance(value, _PARTS)}
        extracted = result.get("extracted", result.get("pred"))
        return {**numbers, "score": result["score"]} | ({} if extracted is None else {"extracted": str(extracted)})
    return result[0] if isinstance(result, list | tuple) and result else result


class VerlBatchManager(BatchRewardManager):
    """Manager ``batch`` for verl's function of a whole batch."""

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: VerlBatchOptions
    ) -> None:
        """
        Raises:
            PluginError: the function cannot be imported.
        """
        function = _load(options.path, options.function)
        inner = BatchOptions(
            f"{options.path}:{options.function}", batch_size=options.batch_size, batch_timeout=options.batch_timeout
        )
        super().__init__(scorers, num_workers=num_workers, timeout=timeout, options=inner)
        self._function = _Batch(function, {**_of_model(options), **options.kwargs})

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        return super().score(requests)


@dataclass(frozen=True)
class _Batch:
    function: _Adapted
    kwargs: Mapping[str, Any]

    def __call__(self, responses: Any, ground_truths: Any, data_sources: Any, extra_infos: Any) -> list[Any]:
        results = self.function(
            data_sources=data_sources,
            solution_strs=responses,
            ground_truths=ground_truths,
            extra_infos=[dict(each) for each in extra_infos],
            **self.kwargs,
        )
        return [score_of(each) for each in results]
