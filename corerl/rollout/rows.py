"""The requests of an episode become rows: the main path, and a branch for each other end of a conversation."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from corerl.batch.rollouts import Branch, Episode, RequestRecord, Rollouts
from corerl.contracts.agents import AgentResult
from corerl.contracts.rollout_backends import Completion
from corerl.contracts.token_columns import TokenValues
from corerl.data.prompts import Prompt
from corerl.errors import RunError
from corerl.rollout.agents import FAILURES
from corerl.rollout.recorder import Node, Recorder


def rollouts_of(recorder: Recorder, result: AgentResult) -> Rollouts:
    """The episode as one response with its branches; without a request it is one token that nobody wrote.

    Raises:
        RunError: there are more rewards of turns than requests.
    """
    turns = _numbered(recorder.nodes)
    ends = [node for node in turns if not node.children]
    main = ends.pop().path() if ends else []
    path, error = _Path.of(main, set()), result.error
    if path.finish_reason == "abort":
        error = error or FAILURES["aborted"]
    if not path.token_ids:
        error = error or FAILURES["silent"]
        path.extend(recorder.tokenizer.stop_token_ids[:1], [0.0], -1)
    _check_turn_rewards(result.turn_rewards, len(turns))
    _check_artifacts(result.artifacts)
    taken = {node.number for node in main}
    branches = [branch for end in ends if (branch := _branch(end, taken))]
    texts = [node.text for node in main]
    episode = Episode(
        response_mask=path.mask(),
        messages=[*map(dict, result.messages)] or [{"role": "assistant", "content": text} for text in texts],
        turns=len(turns),
        reward=float(result.reward),
        components={name: float(value) for name, value in result.components.items()},
        metrics={name: _number(value) for name, value in {**recorder.chat_metrics, **result.metrics}.items()},
        error=error,
        turn_rewards=[float(reward) for reward in result.turn_rewards],
        turn_ids=path.turn_ids,
        branches=branches,
        requests=[_record(node) for node in turns],
        seconds={"began": recorder.began},
        artifacts=dict(result.artifacts),
    )
    prompt = _prompt(recorder.group.prompt, main, result)
    response = "\n".join(recorder.tokenizer.opening(node.read) + node.text for node in main)
    return Rollouts([prompt], [path.completion()], [response], [0], [episode])


def _numbered(nodes: Sequence[Node]) -> list[Node]:
    """In the order of asking, with numbers that leave out requests without an answer."""
    turns = sorted(nodes, key=lambda node: node.number)
    for number, node in enumerate(turns):
        node.number = number
    return turns


def _record(node: Node) -> RequestRecord:
    turn, parent = node.turn, -1 if node.parent is None else node.parent.number
    return RequestRecord(node.number, parent, len(node.read), len(turn.token_ids), *node.times, turn.finish_reason)


def _branch(end: Node, taken: set[int]) -> Branch | None:
    """The path to ``end`` from its first request on that no row has; ``taken`` gets the requests of this row."""
    nodes = end.path()
    path = _Path.of(nodes, taken)
    taken |= {node.number for node in nodes}
    first = next((place for place, turn in enumerate(path.turn_ids) if turn >= 0), None)
    if first is None:
        return None
    prompt_ids = (*nodes[0].read, *path.token_ids[:first])
    return Branch(prompt_ids, path.completion(first), path.mask()[first:], path.turn_ids[first:])


def _prompt(prompt: Prompt, main: Sequence[Node], result: AgentResult) -> Prompt:
    if main and main[0].read != list(prompt.token_ids):
        prompt = dataclasses.replace(prompt, token_ids=tuple(main[0].read))
    if result.prompt is not None:
        prompt = dataclasses.replace(prompt, messages=[*map(dict, result.prompt)])
    return prompt


def _check_turn_rewards(rewards: Sequence[float], requests: int) -> None:
    if len(rewards) > requests:
        raise RunError(f"the agent returned {len(rewards)} turn rewards for {requests} requests")
    if not all(map(math.isfinite, rewards)):
        raise RunError(f"the agent returned the turn rewards {list(rewards)}: a reward must be finite")


def _check_artifacts(artifacts: Mapping[Any, Any]) -> None:
    for name, text in artifacts.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise RunError(
                f"the agent returned an artifact {name!r:.100} of {type(text).__name__}: names and artifacts are texts"
            )


def _number(value: float | Sequence[float]) -> float | tuple[float, ...]:
    """A metric of an agent as it is kept in checkpoints."""
    return tuple(map(float, value)) if isinstance(value, Sequence) else float(value)


@dataclasses.dataclass
class _Path:
    """The tokens behind the first request of a conversation.

    Attributes:
        versions: (first token, version of the weights) of each run of tokens.
        columns: name -> values of all tokens, those of the first request included.
    """

    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probs: list[float] = dataclasses.field(default_factory=list)
    turn_ids: list[int] = dataclasses.field(default_factory=list)
    versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    columns: dict[str, TokenValues] = dataclasses.field(default_factory=dict)
    finish_reason: Any = "stop"

    @classmethod
    def of(cls, nodes: Sequence[Node], taken: set[int]) -> "_Path":
        """The path of these requests; samples of requests in ``taken`` are read."""
        path = cls()
        for node in nodes:
            if node.parent is not None:
                path.extend(node.read, [0.0] * len(node.read), -1)
            for start, _, version in node.turn.version_runs():
                if not path.versions or path.versions[-1][1] != version:
                    path.versions.append((len(path.token_ids) + start, version))
            path.extend(node.turn.token_ids, node.turn.log_probs, -1 if node.number in taken else node.number)
            for name, column in node.turn.columns.items():
                own = path.columns.get(name)
                tokens = len(nodes[0].read) + len(path.token_ids)
                path.columns[name] = column.last(tokens) if own is None else own.then(column, tokens - len(own))
            path.finish_reason = "length" if node.is_full and not node.children else node.turn.finish_reason
        return path

    def extend(self, token_ids: Sequence[int], log_probs: Sequence[float], turn: int) -> None:
        self.token_ids += token_ids
        self.log_probs += log_probs
        self.turn_ids += [turn] * len(token_ids)

    def mask(self) -> list[bool]:
        """Which tokens are trained."""
        return [turn >= 0 for turn in self.turn_ids]

    def completion(self, first: int = 0) -> Completion:
        """The tokens from ``first`` on; the first has the version of its run."""
        before = [version for start, version in self.versions if start <= first]
        version = before[-1] if before else (self.versions[0][1] if self.versions else 0)
        updates = tuple((start - first, version) for start, version in self.versions if start > first)
        if not before and updates:
            updates = updates[1:]
        return Completion(
            self.token_ids[first:], self.log_probs[first:], self.finish_reason, version, updates, self.columns
        )
