"""Reward manager ``remote``: your HTTP server scores.

A request is posted as JSON::

    {"samples": [{"prompt": [{"role": "user", "content": "6 · 7?"}], "response": "42", "ground_truth": "42",
                  "data_source": "acme/sums", "extra_info": {}, "truncated": false}, …]}

and answered by ``{"results": [1.0, …]}``, in the same order, each a number or an object with ``score``, further numbers
(the components) and ``extracted``, or ``{"error": "why there is no score"}``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl.threads import CallQueue
from corerl_rewards.calls import Made, failed, late, returned
from corerl_rewards.options import RemoteOptions
from corerl_rewards.post import LateError, Poster, ServerError

Chunk = Sequence[RewardRequest]


class RemoteRewardManager:
    """Posts ``batch_size`` responses at a time, ``num_workers`` requests at a time.

    A failed connection and the answers 408, 429 and 5xx are retried after a random, growing pause, or after the
    server's Retry-After; ``timeout`` covers a request with all its attempts. The responses of a request without an
    answer get errors of the kind ``server`` or ``timeout``. Scorers are not used.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: RemoteOptions
    ) -> None:
        """
        Raises:
            ConfigError: ``url`` is no address, or the variable of the token is not set.
        """
        self._poster = Poster(options.url, options)
        self._size = options.batch_size
        self._timeout = timeout
        self._calls = CallQueue(self._ask, self._late, num_workers=num_workers, timeout=timeout + 1.0)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        return self.submit(requests).result()

    def submit(self, requests: Sequence[RewardRequest]) -> Made:
        """As :meth:`score`, without waiting."""
        chunks: list[Chunk] = [requests[start : start + self._size] for start in range(0, len(requests), self._size)]
        return Made(self._calls.submit(chunks), lambda answers: [result for chunk in answers for result in chunk])

    def close(self) -> None:
        """Start no further call."""
        self._calls.close()
        self._poster.close()

    def _ask(self, chunk: Chunk) -> list[RewardResult]:
        try:
            answer = self._poster.post({"samples": [_sample(request) for request in chunk]}, self._timeout)
        except ServerError as error:
            return [failed("timeout" if isinstance(error, LateError) else "server", str(error))] * len(chunk)
        except Exception as error:
            return [failed("exception", f"a request cannot be posted: {type(error).__name__}: {error}")] * len(chunk)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list) or len(results) != len(chunk):
            why = f'{self._poster.url} must answer {{"results": [{len(chunk)} scores]}}, not {answer!r:.200}'
            return [failed("server", why)] * len(chunk)
        return [_result(request, value) for request, value in zip(chunk, results, strict=True)]

    def _late(self, chunk: Chunk) -> list[RewardResult]:
        return [late(f"a request to {self._poster.url}", self._timeout)] * len(chunk)


def _sample(request: RewardRequest) -> dict[str, Any]:
    return {
        "prompt": list(request.prompt),
        "response": request.response,
        "ground_truth": request.ground_truth,
        "data_source": request.data_source,
        "extra_info": dict(request.extra_info),
        "truncated": request.truncated,
    }


def _result(request: RewardRequest, value: Any) -> RewardResult:
    if isinstance(value, dict) and value.get("error"):
        return failed("server", f"the server could not score it: {value['error']}")
    if isinstance(value, dict):
        value = {name: part for name, part in value.items() if name != "error"}
    return returned(request.data_source, value)
