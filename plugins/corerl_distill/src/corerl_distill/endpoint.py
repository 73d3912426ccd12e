"""A teacher on a server: vLLM's ``/inference/v1/generate``, tokens in, log-probs of the prompt's tokens out.

The prompt of a request is the teacher's prompt with the response behind it. vLLM gives log-probs at temperature 1, of
at most ``--max-logprobs`` tokens (20 unless set) for each position.
"""

import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.surroundings import is_near
from corerl.errors import DeadlineError, RunError
from corerl.secrets import reveal
from corerl_distill.contexts import Contexts
from corerl_distill.options import DistillOptions, TeacherOptions
from corerl_distill.readers import Reading, in_context, responses_of
from corerl_torch.media_store import COLUMN

PATH = "/inference/v1/generate"
RETRIES = 3
TEXT_ALONE = "a teacher on a server reads text alone, and a row has images: name a model (path)"
LEAST_REST = 1e-7
"""least probability of all tokens beyond the top k: the server's numbers are float32"""


class Position(NamedTuple):
    """One token of a response under the teacher: its own log-prob, and the most probable tokens with theirs."""

    log_prob: float
    top: list[int]
    top_log_probs: list[float]


class Server:
    """The server of a teacher.

    Args:
        name: of the teacher, for messages.
    """

    def __init__(self, name: str, teacher: TeacherOptions) -> None:
        assert teacher.url is not None
        self._name, self._options = name, teacher
        self._url = teacher.url.rstrip("/").removesuffix("/v1") + PATH
        without_proxy = [urllib.request.ProxyHandler({})] if is_near(self._url) else []
        self._opener = urllib.request.build_opener(_NoRedirect, *without_proxy)
        self._headers = {"Content-Type": "application/json"}
        if teacher.api_key is not None:
            self._headers["Authorization"] = f"Bearer {reveal(teacher.api_key)}"

    def read(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], top_k: int
    ) -> list[list[Position]]:
        """For each row a position for each response token.

        Args:
            top_k: most probable tokens; 0: none.

        Raises:
            DeadlineError: the server did not answer all rows in ``timeout`` seconds.
            RunError: it refused a request, or its answer is not of this form.
        """
        deadline = time.monotonic() + self._options.timeout
        pool = ThreadPoolExecutor(self._options.num_workers, f"corerl-{self._name}")
        try:
            rows = zip(prompts, responses, strict=True)
            futures = [pool.submit(self._row, list(prompt), list(own), top_k, deadline) for prompt, own in rows]
            done, late = wait(futures, max(0.0, deadline - time.monotonic()), FIRST_EXCEPTION)
            for future in done:
                future.result()
            if late:
                raise self._late()
            return [future.result() for future in futures]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def log_probs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[Tensor]:
        """Of each row, the log-probs of its response tokens."""
        rows = self.read(prompts, responses, top_k=0)
        return [torch.tensor([each.log_prob for each in row]) for row in rows]

    def _late(self) -> DeadlineError:
        return DeadlineError(
            f"teacher '{self._name}' at {self._url} did not answer within {self._options.timeout:g} s (timeout of the "
            "teacher)"
        )

    def _row(self, prompt: list[int], response: list[int], top_k: int, deadline: float) -> list[Position]:
        body: dict[str, Any] = {
            "token_ids": prompt + response,
            "sampling_params": {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": top_k, "detokenize": False},
        }
        if self._options.model is not None:
            body["model"] = self._options.model
        answer = self._ask(json.dumps(body).encode(), deadline)
        try:
            given = answer["prompt_logprobs"][len(prompt) :]
            rows = [_position(each, token, top_k) for each, token in zip(given, response, strict=True)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"teacher '{self._name}': {self._url} gave no log-probs of the prompt's tokens, as vLLM does "
                f"({type(error).__name__}: {error})"
            ) from None
        return rows

    def _ask(self, body: bytes, deadline: float) -> Mapping[str, Any]:
        for attempt in range(RETRIES + 1):
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._late()
            request = urllib.request.Request(self._url, body, self._headers)
            try:
                with self._opener.open(request, timeout=left) as answer:
                    found: Mapping[str, Any] = json.load(answer)
                    return found
            except urllib.error.HTTPError as error:
                if error.code < 500 or attempt == RETRIES:
                    text = error.read(500).decode(errors="replace")
                    raise RunError(f"teacher '{self._name}': {self._url} answered {error.code}: {text}") from None
            except (OSError, ValueError) as error:
                if attempt == RETRIES:
                    raise RunError(f"teacher '{self._name}': {self._url} cannot be reached: {error}") from None
            time.sleep(min(2.0**attempt, max(0.0, deadline - time.monotonic())))
        raise AssertionError


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A key is sent to the named host alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _position(given: Mapping[str, Any], token: int, top_k: int) -> Position:
    """Of vLLM's mapping of token ids to log-probs and ranks."""
    ranked = sorted((each["rank"], int(name), float(each["logprob"])) for name, each in given.items())
    if top_k and len(ranked) < top_k:
        raise ValueError(f"{len(ranked)} tokens at a position, not {top_k}")
    top = ranked[:top_k]
    return Position(float(given[str(token)]["logprob"]), [each[1] for each in top], [each[2] for each in top])


class Endpoint:
    """See :class:`corerl_distill.readers.Reader`: forms ``sampled`` and ``top_k``.

    Args:
        vocabulary: of the policy.
        contexts: the teacher's own prompts; None: those of the policy.
    """

    def __init__(self, server: Server, options: DistillOptions, vocabulary: int, contexts: Contexts | None) -> None:
        self._server, self._contexts, self._vocabulary = server, contexts, vocabulary
        self._top_k = options.top_k if options.form == "top_k" else 0

    def __call__(self, batch: Experience, prompts: Sequence[Any], rows: Sequence[Any]) -> Reading:
        mask = batch.response_mask
        responses = responses_of(batch)
        if any(len(row.completion.columns[COLUMN].values) for row in rows if COLUMN in row.completion.columns):
            raise RunError(TEXT_ALONE)
        own = [list(row.prompt_ids) for row in rows]
        if self._contexts is not None:
            own = [each.token_ids for each in in_context(self._contexts, prompts, rows)]
        read = self._server.read(own, responses, self._top_k)
        found = [read[row][step] for row, step in mask.nonzero().tolist()]
        if not self._top_k:
            return Reading(mask, {"log_probs": torch.tensor([each.log_prob for each in found])})
        top = torch.tensor([each.top for each in found], dtype=torch.int32).view(-1, self._top_k)
        if len(top) and int(top.max()) >= self._vocabulary:
            raise RunError(f"the teacher's token {int(top.max())} is none of the policy's {self._vocabulary}")
        return Reading(mask, {"values": torch.tensor([_bins(each) for each in found]), "top": top})


def _bins(position: Position) -> list[float]:
    rest = 1.0 - math.fsum(math.exp(each) for each in position.top_log_probs)
    return [*position.top_log_probs, math.log(max(rest, LEAST_REST))]
