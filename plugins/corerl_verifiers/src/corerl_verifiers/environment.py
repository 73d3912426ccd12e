"""Environment ``verifiers``: the library's SingleTurnEnv, MultiTurnEnv and ToolEnv, and their subclasses.

The library's own rollout runs unchanged, as a coroutine for each episode. Its client, in place of a model server,
passes each prompt to the policy and waits for the policy's text. The rubric gives the reward at the end of the rollout,
also if a limit of CoreRL ended the episode: the client then refuses the next prompt as too long.

In the library, a reward function that raises counts as 0. Here it is an error of its episode.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from corerl.errors import ConfigError
from corerl_envs import Start, Task, Turn
from corerl_verifiers.messages import answer_of, described_tools, from_library, response_of
from corerl_verifiers.options import CLASSES, VerifiersOptions, require_library

KEY = "rollout.multi_turn.environment"

require_library(KEY, CLASSES)

import verifiers as vf  # noqa: E402
from verifiers.clients import OpenAIChatCompletionsClient  # noqa: E402

_failures: ContextVar[list[Exception]] = ContextVar("failures")


class VerifiersEnvironment:
    """See :class:`corerl_envs.EndingEnvironment`; all rollouts share one event loop.

    Raises:
        ConfigError: there is no such environment, or its rubric compares responses.
    """

    def __init__(self, *, options: VerifiersOptions) -> None:
        try:
            self._environment = vf.load_environment(options.env_id, **options.env_args)
        except Exception as error:
            raise ConfigError(f"{KEY}.env_id", f"'{options.env_id}' cannot be loaded: {error}") from error
        if self._environment.requires_group_rollouts:
            raise ConfigError(
                f"{KEY}.env_id", f"the rubric of '{options.env_id}' compares responses: that has no place"
            )
        _tell_failures(self._environment.rubric)

    async def reset(self, task: Task, seed: int) -> Start:
        """Start a rollout of the row: ``ground_truth`` as text is its answer, ``extra_info.info`` its info."""
        info = task.extra_info.get("info") or {}
        episode = _Episode()
        episode.play(
            self._environment,
            {
                "prompt": [dict(message) for message in task.messages],
                "example_id": task.extra_info.get("index", 0),
                "answer": answer_of(task.ground_truth),
                "info": info,
            },
        )
        prompt = await episode.next_prompt()
        if prompt is None:
            raise RuntimeError("the rollout was over before the first turn")
        return Start(episode, described_tools(from_library(prompt), episode.tools))

    async def step(self, state: "_Episode", response: str) -> Turn:
        """Pass the policy's text to the rollout; returns the new messages of the next prompt."""
        before = state.prompt
        calls, malformed = state.write(response)
        prompt = await state.next_prompt()
        if prompt is None:
            return Turn(reward=await state.reward(), done=True, tool_calls=calls, tool_errors=malformed)
        if prompt[: len(before)] != before:
            raise RuntimeError("the environment rewrites the conversation, which an episode cannot")
        return Turn(from_library(prompt[len(before) + 1 :]), tool_calls=calls, tool_errors=malformed)

    async def end(self, state: "_Episode") -> float | None:
        """The reward of an episode that was ended by a limit."""
        return await state.end()

    def close(self) -> None:
        """Does nothing; the library cleans up at the end of the process."""


class _Episode(OpenAIChatCompletionsClient):  # type: ignore[misc]
    """The client of one rollout; the library calls it for each turn.

    Attributes:
        prompt: the last prompt from the library.
        tools: tools that the policy may call.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.prompt: list[Any] = []
        self.tools: list[Any] = []
        self._asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self._answer: asyncio.Future[Any] | None = None
        self._rollout: asyncio.Task[float] | None = None
        self._is_over = self._is_settled = False

    def play(self, environment: Any, row: dict[str, Any]) -> None:
        """Start the rollout."""
        self._rollout = asyncio.create_task(self._play(environment, row))

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
        """The library's request for a turn."""
        if self._is_over:
            raise vf.OverlongPromptError("the episode reached a limit")
        self.tools = tools or []
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(list(prompt))
        return await self._answer

    def write(self, response: str) -> tuple[int, int]:
        """Pass the policy's turn to the library; returns the numbers of its tool calls and of its malformed calls."""
        assert self._answer is not None
        answer, malformed = response_of(response, with_tools=bool(self.tools))
        self._answer.set_result(answer)
        return len(answer.message.tool_calls or ()), malformed

    async def next_prompt(self) -> list[Any] | None:
        """The library's next prompt; None at the end of the rollout."""
        assert self._rollout is not None
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait([asked, self._rollout], return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            return None
        self.prompt = asked.result()
        return self.prompt

    async def reward(self) -> float:
        """The rubric's reward of a rollout that ends."""
        assert self._rollout is not None
        self._is_settled = True
        return await self._rollout

    async def end(self) -> float | None:
        """End the rollout if it is still running; returns its reward."""
        if self._is_settled:
            return None
        self._is_over = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(vf.OverlongPromptError("the episode reached a limit"))
        return await self.reward()

    async def _play(self, environment: Any, row: dict[str, Any]) -> float:
        failures: list[Exception] = []
        _failures.set(failures)
        state = await environment.rollout(row, self, "policy", {})
        if state["error"] is not None:
            raise state["error"]
        await environment.rubric.score_rollout(state)
        await environment.rubric.cleanup(state)
        if failures:
            raise failures[0]
        return float(state["reward"])


def _tell_failures(rubric: Any) -> None:
    """Record the exceptions of the rubric's reward functions, including nested rubrics."""
    for part in getattr(rubric, "rubrics", ()):
        _tell_failures(part)
    rubric.funcs = [_telling(function) for function in rubric.funcs]


def _telling(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def told(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        except Exception as error:
            _failures.get().append(error)
            raise

    return told
