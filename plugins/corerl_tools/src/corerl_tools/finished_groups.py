"""``groups.parquet`` of a checkpoint: finished groups that wait to be trained, one row a response."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.batch.rollouts import Episode, Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.files import read_parquet_file
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.data.schema import Message
from corerl.errors import DataError
from corerl.files import reading
from corerl.rollout.scored import FinishedGroup, ScoredRollouts

FILE = "groups.parquet"

SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("is_baseline", pa.bool_()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("log_probs", pa.list_(pa.float64())),
        ("facts", pa.string()),
    ]
)
"""``prompt_ids`` are those of the data; ``facts`` are JSON of everything else"""


def write_groups(path: Path, groups: Sequence[FinishedGroup]) -> None:
    """Write the groups to a parquet file; without groups, write none."""
    rows: list[dict[str, Any]] = []
    for group in groups:
        rows += _rows(group, group.scored, is_baseline=False)
        if group.baseline is not None:
            rows += _rows(group, group.baseline, is_baseline=True)
    if rows:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)


def read_groups(path: Path, prompts: PromptDataset, sampler: PromptSampler) -> list[FinishedGroup]:
    """The groups of a checkpoint, by number; none if it has no such file.

    Args:
        sampler: in the checkpoint's state.

    Raises:
        DataError: a prompt differs from the data's, or the file is damaged.
        RequestError: a value is none that :func:`write_groups` writes.
    """
    if not path.is_file():
        return []
    rows = read_parquet_file(str(path)).to_pylist()
    with reading(path):
        numbers = {row["number"]: None for row in rows}
        if any(number < sampler.next or number in sampler.done for number in numbers):
            raise ValueError("a group was trained before the checkpoint")
        of_groups: dict[int, list[Mapping[str, Any]]] = {number: [] for number in sorted(numbers)}
        for row in rows:
            of_groups[row["number"]].append(row)
        return [_group(number, rows, prompts[sampler.prompt(number)], path) for number, rows in of_groups.items()]


def _rows(group: FinishedGroup, scored: ScoredRollouts, *, is_baseline: bool) -> Iterable[dict[str, Any]]:
    rollouts = scored.rollouts
    episodes: Sequence[Episode | None] = rollouts.episodes or [None] * len(rollouts)
    for own, completion, response, result, episode in zip(
        rollouts.prompts, rollouts.completions, rollouts.responses, scored.results, episodes, strict=True
    ):
        facts = {
            "finish_reason": completion.finish_reason,
            "weight_version": completion.weight_version,
            "updates": [list(update) for update in completion.updates],
            "response": response,
            "result": dataclasses.asdict(result),
            "episode": None if episode is None else dataclasses.asdict(episode),
            "start": None if own is group.prompt else {"messages": own.messages, "token_ids": list(own.token_ids)},
        }
        yield {
            "number": group.number,
            "is_baseline": is_baseline,
            "prompt_ids": group.prompt.token_ids,
            "token_ids": completion.token_ids,
            "log_probs": completion.log_probs,
            "facts": json.dumps(facts, default=str),
        }


def _group(number: int, rows: Sequence[Mapping[str, Any]], prompt: Prompt, path: Path) -> FinishedGroup:
    if any(tuple(row["prompt_ids"]) != tuple(prompt.token_ids) for row in rows):
        raise DataError(
            f"{path} has responses to another prompt than the data at place {number} of its order: resume with the "
            "data.train_files and the tokenizer of the checkpoint, or delete this file to generate these groups again"
        )
    scored = _scored([row for row in rows if not row["is_baseline"]], prompt)
    baseline = None
    if greedy := [row for row in rows if row["is_baseline"]]:
        baseline = _scored(greedy, prompt)
        scored = dataclasses.replace(scored, greedy_results=baseline.results * len(scored))
    return FinishedGroup(number, prompt, scored, baseline)


def _scored(rows: Sequence[Mapping[str, Any]], prompt: Prompt) -> ScoredRollouts:
    facts = [json.loads(row["facts"]) for row in rows]
    starts = [each["start"] for each in facts]
    completions = [
        Completion(
            row["token_ids"],
            row["log_probs"],
            each["finish_reason"],
            int(each["weight_version"]),
            tuple((int(start), int(version)) for start, version in each["updates"]),
        )
        for row, each in zip(rows, facts, strict=True)
    ]
    if any(len(each.token_ids) != len(each.log_probs) or not each.token_ids for each in completions):
        raise ValueError("a response has no tokens, or another number of log-probs")
    rollouts = Rollouts(
        [prompt if start is None else _changed(prompt, **start) for start in starts],
        completions,
        [each["response"] for each in facts],
        [0] * len(rows),
        None if facts[0]["episode"] is None else [Episode(**each["episode"]) for each in facts],
    )
    return ScoredRollouts(rollouts, [RewardResult(**each["result"]) for each in facts])


def _changed(prompt: Prompt, *, messages: list[Message], token_ids: Sequence[int]) -> Prompt:
    """The prompt as an agent began with it."""
    return dataclasses.replace(prompt, messages=messages, token_ids=tuple(token_ids))
