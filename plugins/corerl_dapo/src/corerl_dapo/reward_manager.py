"""Reward manager ``dapo``: the scorer's score, minus a penalty for responses near the largest length.

With n the tokens of a response, L the largest length, b = ``overlong_buffer_len`` and f = ``overlong_penalty_factor``::

    exceed  = n - (L - b)
    penalty = f · clip(-exceed / b, -1, 0)

Yu et al. 2025 (DAPO), arXiv 2503.14476, equation 13 (soft overlong punishment, f = 1). In the paper L is 20480 and b is
4096, a fifth. Beyond L, which is only possible if ``max_resp_len`` is below ``data.max_response_length``, the
penalty stays at -f, as in the paper; in some frameworks it grows.
"""

from collections.abc import Mapping, Sequence

from corerl.contracts.reward_managers import PartwiseRewardManager, RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.errors import RunError
from corerl_dapo.options import DapoOptions
from corerl_rewards.managers import Made, NaiveRewardManager, ParallelOptions, ParallelRewardManager

PAPERS_SHARE = 5
LENGTH_NOT_KNOWN = "reward manager 'dapo' does not know the largest length of a response: set max_resp_len"


class DapoRewardManager:
    """Scores like ``parallel``, or ``naive``, and adds the penalty.

    Components in addition to the scorer's: ``overlong_penalty`` (at most 0), ``overlong`` (1 if the penalty is below 0)
    and ``score_before_penalty`` (with ``plus_minus_one``, 2 · score - 1). A failed result is not changed.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: DapoOptions
    ) -> None:
        self.options = options
        self._inner: PartwiseRewardManager
        if options.scoring == "naive":
            self._inner = NaiveRewardManager(scorers, num_workers=num_workers, timeout=timeout)
        else:
            limits = ParallelOptions(memory_limit_gb=options.memory_limit_gb)
            self._inner = ParallelRewardManager(scorers, num_workers=num_workers, timeout=timeout, options=limits)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order; an error if the largest length is not known.

        Raises:
            RunError: ``overlong_buffer_len`` is longer than the largest length.
        """
        return self.submit(requests).result()

    def submit(self, requests: Sequence[RewardRequest]) -> Made:
        """As :meth:`score`, without waiting."""
        self._check_buffer(requests)
        return Made(self._inner.submit(requests), lambda results: list(map(self._shape, requests, results)))

    def close(self) -> None:
        """Stop the manager's processes."""
        self._inner.close()

    def _largest_length(self, request: RewardRequest) -> int:
        return self.options.max_resp_len or request.max_response_length

    def _check_buffer(self, requests: Sequence[RewardRequest]) -> None:
        buffer = self.options.overlong_buffer_len
        shortest = min(filter(None, map(self._largest_length, requests)), default=None)
        if buffer is not None and shortest is not None and buffer > shortest:
            raise RunError(
                f"reward.manager.overlong_buffer_len: {buffer} tokens are more than the {shortest} of a response; "
                "make it smaller, or leave it out for a fifth of data.max_response_length"
            )

    def _shape(self, request: RewardRequest, result: RewardResult) -> RewardResult:
        if result.score is None:
            return result
        if not self._largest_length(request):
            return RewardResult(None, error=LENGTH_NOT_KNOWN, error_kind="length")
        before = 2 * result.score - 1 if self.options.plus_minus_one else result.score
        penalty = self._penalty(request)
        shaping = {
            "overlong_penalty": penalty,
            "overlong": float(penalty < 0),
            "score_before_penalty": before,
        }
        return RewardResult(before + penalty, {**result.components, **shaping}, result.extracted)

    def _penalty(self, request: RewardRequest) -> float:
        largest = self._largest_length(request)
        buffer = self.options.overlong_buffer_len or max(1, largest // PAPERS_SHARE)
        exceed = request.response_length - (largest - buffer)
        return self.options.overlong_penalty_factor * -min(max(exceed / buffer, 0.0), 1.0)
