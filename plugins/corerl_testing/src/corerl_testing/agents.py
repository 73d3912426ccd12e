"""Checks of agents: the contract of :mod:`corerl.contracts.agents`, with the real recorder and a scripted engine."""

import asyncio
import contextlib
import copy
import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

from corerl.contracts.agents import Agent, AgentFactory, AgentResult, ClosingAgent, Task
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data import load_tokenizer
from corerl.data.prompts import Prompt
from corerl.errors import ConfigError, CoreRLError, ModelError
from corerl.foreign import SharedLoop, contained
from corerl.plugins import load_plugins
from corerl.registry import Selected
from corerl.rollout.agents import checked, make_agent
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl_testing.deadline import scaled, within
from corerl_testing.results import CheckFailed, CheckSkipped, Run

SECONDS = 30.0
"""seconds for an episode"""

CANCEL_SECONDS = 5.0
"""seconds in which a cancelled episode must end"""

MANY = 8
"""number of interleaved episodes"""

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>'

ANSWERS = ("4", "I think\nthat it is 42.", "", "#### 42", "ü漢🙂", "left " * 30, CALL, CALL)

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call></tool_call><|im_end|>{{ '\n' }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}{{ '\n' }}{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)

TASKS = tuple(
    Task(
        [{"role": "user", "content": f"What is {number} * 7?"}],
        str(7 * number),
        "corerl/arithmetic",
        {"n": number},
        seed=number,
    )
    for number in range(MANY)
)

Trace = tuple[Any, ...]
"""the requests of an episode, in order, and its result"""


def checks(selected: Selected[AgentFactory]) -> Iterator[tuple[str, Run]]:
    """(name, run) pairs."""
    for name, check in _CHECKS.items():
        yield name, partial(_with, check, selected)


def _with(check: "CheckEpisodes", selected: Selected[AgentFactory]) -> None:
    with _Stage.of(selected) as stage:
        try:
            within(SECONDS, lambda: _run(check(stage)), "an episode")
        except CheckFailed:
            raise
        except CoreRLError as error:
            raise CheckFailed(f"an episode ended with an error of the run: {error}") from error


def _run(check: Coroutine[Any, Any, None]) -> None:
    """Run a check in an event loop; a task of the agent that does not end is left behind after a second."""
    loop = SharedLoop()
    try:
        loop.run_until_complete(check)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=1))
        loop.close()


class Engine:
    """Answers by the tokens of the request alone; an engine with ``hangs`` never does, one with ``fails`` raises."""

    def __init__(self, tokenizer: ChatTokenizer, *, hangs: bool = False, fails: bool = False) -> None:
        self._tokenizer, self._hangs, self._fails = tokenizer, hangs, fails
        self.asked: list[tuple[int, ...]] = []

    async def complete(
        self, request: GenerationRequest, on_sent: Callable[[], None] = lambda: None
    ) -> list[Completion]:
        """See :class:`corerl.rollout.request_queue.RequestQueue`."""
        on_sent()
        self.asked.append(tuple(request.prompt_ids))
        if self._hangs:
            await asyncio.sleep(10 * SECONDS)
        await asyncio.sleep(0)
        if self._fails:
            raise RuntimeError("the engine was lost")
        number = int.from_bytes(hashlib.blake2b(repr(self.asked[-1]).encode(), digest_size=4).digest())
        [ids] = self._tokenizer.encode_inside([ANSWERS[number % len(ANSWERS)]])
        ids = [*ids, self._tokenizer.stop_token_ids[0]][: request.sampling.max_tokens]
        return [Completion(ids, [-1.0] * len(ids), "stop", 0)]


@dataclasses.dataclass
class _Stage:
    """An agent, and the surroundings of its episodes."""

    selected: Selected[AgentFactory]
    agent: Agent
    config: TrainConfig
    tokenizer: ChatTokenizer

    @classmethod
    @contextlib.contextmanager
    def of(cls, selected: Selected[AgentFactory]) -> "Iterator[_Stage]":
        """An agent, closed at the end.

        Raises:
            CheckSkipped: the agent needs options, or there is no tokenizer.
        """
        try:
            config, tokenizer = TrainConfig(ModelConfig(_folder())), _tokenizer()
        except (ModelError, ImportError) as error:
            raise CheckSkipped(f"no tokenizer can be loaded here: {error}") from error
        try:
            agent = within(SECONDS, lambda: make_agent(selected, _parts(), config, tokenizer), "the making of an agent")
        except ConfigError as error:
            raise CheckSkipped(f"needs options: {error}") from error
        assert agent is not None
        try:
            yield cls(selected, agent, config, tokenizer)
        finally:
            if isinstance(agent, ClosingAgent):
                within(SECONDS, agent.close, "close()")

    async def play(self, task: Task, **engine: bool) -> Trace:
        """An episode: its requests and its result."""
        made = Engine(self.tokenizer, **engine)
        prompt = Prompt(
            0, tuple(task.prompt_ids), list(map(dict, task.messages)), task.data_source, task.ground_truth, {}
        )
        group = Group(prompt, task.seed, SamplingParams(4096), "check-0", "check", 0)
        chats = load_plugins().hook.make_chats(config=self.config, tokenizer=self.tokenizer)
        recorder = Recorder(made, self.tokenizer, group, 0, 4096, Services(chats))
        try:
            result = await contained(lambda: self.agent.run(task, recorder), "the agent")
        finally:
            recorder.end()
        if recorder.failure is not None:
            raise recorder.failure
        return made.asked, _checked(result, len(made.asked))


@functools.cache
def _folder() -> str:
    from corerl_testing.tiny_model import tiny_model

    return str(tiny_model())


@functools.cache
def _tokenizer() -> ChatTokenizer:
    tokenizer = load_tokenizer(ModelConfig(_folder()))
    tokenizer.tokenizer.chat_template = TEMPLATE
    return tokenizer


def _parts() -> dict[str, Selected[Any]]:
    """For :attr:`AgentContext.part`: of each kind of a plugin with a key, the first part with default options."""
    found: dict[str, Selected[Any]] = {}
    for _, registry in load_plugins().registries:
        if registry.config_key.startswith("rollout.multi_turn."):
            for entry in registry:
                with contextlib.suppress(CoreRLError):
                    found.setdefault(registry.config_key, registry.with_options(entry, {}, entry.name))
    return found


def _task(number: int) -> Task:
    """A new object with the prompt's tokens."""
    tokenizer, task = _tokenizer(), TASKS[number]
    text = tokenizer.render(task.messages, "a task", add_generation_prompt=True)
    return copy.deepcopy(dataclasses.replace(task, prompt_ids=tuple(tokenizer.encode([text])[0])))


def _checked(result: Any, requests: int) -> Any:
    """The result as plain values."""
    if result is None:
        return None
    if not isinstance(result, AgentResult):
        raise CheckFailed(f"run() gave {type(result).__name__}, not AgentResult")
    result = checked(result)
    for name, value in {**result.components, **result.metrics}.items():
        if not all(map(math.isfinite, value if isinstance(value, tuple) else (value,))):
            raise CheckFailed(f"{name} is {value}: it must be a finite number")
    if len(result.turn_rewards) > requests:
        raise CheckFailed(f"{len(result.turn_rewards)} turn_rewards for {requests} requests")
    untimed = {name: value for name, value in result.metrics.items() if "seconds" not in name}
    return copy.deepcopy(dataclasses.replace(result, metrics=untimed))


async def _right_results(stage: _Stage) -> None:
    for number in range(3):
        asked, _ = await stage.play(_task(number))
        if not asked:
            raise CheckFailed("an episode has no request: its policy learns nothing")


async def _deterministic(stage: _Stage) -> None:
    for number in range(2):
        if await stage.play(_task(number)) != await stage.play(_task(number)):
            raise CheckFailed("two episodes of one task with equal answers differ: draw from task.seed alone")


async def _in_any_order(stage: _Stage) -> None:
    forth = [await stage.play(_task(number)) for number in range(3)]
    with _Stage.of(stage.selected) as other:
        back = [await other.play(_task(number)) for number in reversed(range(3))]
    if forth != back[::-1]:
        raise CheckFailed("an episode depends on the episodes before it: a second object, with another order, differs")


async def _apart(stage: _Stage) -> None:
    alone = [await stage.play(_task(number)) for number in range(MANY)]
    together = await asyncio.gather(*(stage.play(_task(number)) for number in range(MANY)))
    if [*together] != alone:
        raise CheckFailed(f"an episode changes when {MANY} are under way: keep its state in local variables")


async def _task_unchanged(stage: _Stage) -> None:
    task = _task(0)
    before = copy.deepcopy(task)
    await stage.play(task)
    if task != before:
        raise CheckFailed(f"it changed its task from {before} to {task}: all episodes of a row share it")


async def _errors_apart(stage: _Stage) -> None:
    """One of several episodes loses its engine."""
    alone = [await stage.play(_task(number)) for number in range(3)]
    episodes = (stage.play(_task(number), fails=number == 1) for number in range(3))
    lost = await asyncio.gather(*episodes, return_exceptions=True)
    after = [await stage.play(_task(number)) for number in range(3)]
    if [lost[0], lost[2]] != [alone[0], alone[2]] or after != alone:
        raise CheckFailed("an episode changes when the request of another one fails")


async def _cancelled(stage: _Stage) -> None:
    """As at ``rollout.agent_timeout``."""
    episode = asyncio.create_task(stage.play(_task(0), hangs=True))
    await asyncio.sleep(0.2)
    episode.cancel()
    seconds = scaled(CANCEL_SECONDS)
    done, _ = await asyncio.wait({episode}, timeout=seconds)
    if not done:
        raise CheckFailed(f"a cancelled episode had not ended after {seconds:g} s")
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await episode


async def _leaves_nothing(stage: _Stage) -> None:
    before = asyncio.all_tasks()
    await stage.play(_task(0))
    for _ in range(20):
        left = [task for task in asyncio.all_tasks() - before if not task.done()]
        if not left:
            return
        await asyncio.sleep(0.05)
    for task in left:
        task.cancel()
    raise CheckFailed(f"a task is left at the end of an episode: {left[0].get_coro()!r:.100}; await each task")


CheckEpisodes = Callable[[_Stage], Coroutine[Any, Any, None]]

_CHECKS: Mapping[str, CheckEpisodes] = {
    "gives_right_results": _right_results,
    "same_requests_for_a_task": _deterministic,
    "in_any_order": _in_any_order,
    "episodes_do_not_meet": _apart,
    "task_unchanged": _task_unchanged,
    "errors_stay_in_their_episode": _errors_apart,
    "ends_when_cancelled": _cancelled,
    "leaves_no_task": _leaves_nothing,
}
