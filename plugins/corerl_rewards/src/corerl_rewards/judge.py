"""Reward manager ``judge``: a language model on any OpenAI-compatible server grades each response.

The judge gets ``prompt``, filled in with the conversation, the ground truth and the response. The last match of
``pattern`` in its answer is the grade, and

    score = (grade - lowest) / (highest - lowest)

====================================================  ===========================================
answer of the judge, with a scale from 0 to 10        result
====================================================  ===========================================
``… Score: 7``, ``**Score: 7/10**``                   0.7
``Score: 8/100``, ``Score: 8%``                       0.08: its own scale
``… Score: 10 if it were right. It is``               error: the default pattern wants it at the end
any, cut off at ``max_tokens``                        error
``<think>… Score: 2``                                 error: the answer is not finished
none, ``Score: 11``                                   error
====================================================  ===========================================

An error is one of that sample (kind ``judge``), never a score: a policy is neither rewarded nor punished for confusing
its judge. Zheng et al. 2023, "Judging LLM-as-a-Judge", arXiv 2306.05685, figure 6, also grades one answer at a time.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from corerl.contracts.dispatch import Future
from corerl.contracts.reward_managers import RewardRequest, RewardResult
from corerl.contracts.scorers import Scorer
from corerl_rewards.calls import LONGEST_EXTRACTED, failed, late
from corerl_rewards.options import JudgeOptions
from corerl_rewards.post import LateError, Poster, ServerError
from corerl_rewards.server import judge
from corerl_rewards.threads import CallQueue

LONGEST = 100_000
"""characters at the end of the judge's answer that are searched for a grade"""

_UNFINISHED = ("length", "content_filter")
_SCALE = re.compile(r"[\s*]*(?:(?P<percent>%)|(?:/|out of)\s*(?P<top>\d+(?:\.\d+)?))")
_REASONING = re.compile(
    r"[<◁](?P<end>/)?(?:\w+:)?(?:think|thinking|reasoning|thought)[>▷]|\[(?P<close>/)?think\]|<\|(?:begin|(?P<last>end))_of_thought\|>",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"<(?=[|｜][^<>\s]{1,60}[|｜]>|/?(?:s|bos|eos|pad|unk)>|(?:start|end)_of_(?:turn|image)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK)\])"
)
"""first letter of a control token of the usual chat templates; the judge's own are not known here"""

_APART = "\u200b"
"""a space without width, behind which letters spell no token"""

_PLACE = re.compile(r"\{(prompt|response|ground_truth)\}")


class JudgeRewardManager:
    """Grades ``num_workers`` responses at a time; ``timeout`` covers all attempts for one response. Scorers are not
    used.

    Components: ``grade``, the judge's grade. ``extracted`` is the text of the grade.
    """

    def __init__(
        self, scorers: Mapping[str, Scorer], *, num_workers: int, timeout: float, options: JudgeOptions
    ) -> None:
        """
        Raises:
            RunError: the engine cannot be started.
            ConfigError: ``base_url`` is no address, or the variable of the token is not set.
        """
        self._server, self._options = None, options
        if options.engine:
            self._server, header = judge(options)
            posting = replace(options, headers={**options.headers, **header})
            self._poster = self._server.poster("/v1/chat/completions", posting)
        else:
            self._poster = Poster((options.base_url or "").rstrip("/") + "/chat/completions", options)
        self._pattern = re.compile(options.pattern)
        self._timeout = timeout
        self._calls = CallQueue(self._grade, self._late, num_workers=num_workers, timeout=timeout + 1.0)

    def score(self, requests: Sequence[RewardRequest]) -> list[RewardResult]:
        """One result for each request, in their order."""
        results: list[RewardResult] = self.submit(requests).result()
        return results

    def submit(self, requests: Sequence[RewardRequest]) -> Future:
        """As :meth:`score`, without waiting, once an engine has started."""
        if self._server is not None:
            self._server.started()
        return self._calls.submit(requests)

    def close(self) -> None:
        """Start no further call."""
        self._calls.close()
        self._poster.close()
        if self._server is not None:
            self._server.close()

    def _grade(self, request: RewardRequest) -> RewardResult:
        options = self._options
        body = {
            "model": options.model,
            "messages": [{"role": "user", "content": self._question(request)}],
            "max_tokens": options.max_tokens,
            "temperature": options.temperature,
        }
        try:
            answer = self._poster.post(body, self._timeout)
            choice = answer["choices"][0]
            text, end = choice["message"]["content"], choice.get("finish_reason")
        except ServerError as error:
            return failed("timeout" if isinstance(error, LateError) else "server", str(error))
        except (LookupError, TypeError, AttributeError):
            return failed("server", f"{self._poster.url} returned no chat completion: {answer!r:.200}")
        except Exception as error:
            return failed("exception", f"a response cannot be posted: {type(error).__name__}: {error}")
        if end in _UNFINISHED:
            reason = f"the judge's answer is not finished ({end}): more than max_tokens={options.max_tokens} are needed"
            return failed("judge", reason if end == "length" else f"the judge's answer is not finished ({end})")
        return self._read(_without_reasoning(str(text))[-LONGEST:])

    def _question(self, request: RewardRequest) -> str:
        """The filled template; filled in one pass, so that ``{ground_truth}`` in a response is not replaced.

        A server takes letters for control tokens, so that a response could forge the judge's turn: they are cut.
        """
        conversation = [f"{message.get('role')}: {message.get('content')}" for message in request.prompt]
        if len(request.prompt) == 1:
            conversation = [str(request.prompt[0].get("content"))]
        values: dict[str, Any] = {
            "prompt": "\n\n".join(conversation),
            "response": request.response,
            "ground_truth": request.ground_truth,
        }
        return _PLACE.sub(lambda match: _TOKEN.sub(rf"\g<0>{_APART}", str(values[match[1]])), self._options.prompt)

    def _read(self, text: str) -> RewardResult:
        lowest, highest = self._options.lowest, self._options.highest
        found = list(self._pattern.finditer(text))
        try:
            grade, scale = float(found[-1][1]), _SCALE.match(text, found[-1].end(1))
        except (IndexError, TypeError, ValueError):
            return failed("judge", f"the judge gave no grade; its answer ends in {text[-80:]!r}")
        written = found[-1][1] + (scale.group() if scale else "")
        top = (100.0 if scale["percent"] else float(scale["top"])) if scale else highest
        if top != highest:
            if lowest or not top:
                return failed("judge", f"the judge's grade {written!r:.40} is not between {lowest:g} and {highest:g}")
            grade *= highest / top
        if not lowest <= grade <= highest:
            return failed("judge", f"the judge's grade {grade:g} is not between {lowest:g} and {highest:g}")
        return RewardResult((grade - lowest) / (highest - lowest), {"grade": grade}, written[:LONGEST_EXTRACTED])

    def _late(self, request: RewardRequest) -> RewardResult:
        return late("the judge", self._timeout)


def _without_reasoning(text: str) -> str:
    """The text after the last reasoning; '' if the reasoning does not end."""
    tags = list(_REASONING.finditer(text))
    if not tags:
        return text
    return text[tags[-1].end() :] if any(tags[-1].groupdict().values()) else ""
