"""``groups.parquet`` of a checkpoint: finished groups that wait to be trained, one row a response."""

import contextlib
import dataclasses
import json
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.batch.rollouts import Episode, Rollouts
from corerl.data.messages import Message
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.errors import DataError
from corerl.files import reading
from corerl.rollout.scored import FinishedGroup, ScoredRollouts
from corerl_tools.finished_columns import columns_to_json
from corerl_tools.finished_values import completion_of, episode_of, messages_of, result_of, token_ids_of, typed

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

GROWTH, HEADROOM = 64, 2**31
"""bytes that this process may grow by while a file is read: for each byte of the file, and besides"""


def write_groups(path: Path, groups: Sequence[FinishedGroup]) -> None:
    """Write the groups to a parquet file; without groups, write none.

    The file is as long as its values: its length bounds the memory that a reader needs.
    """
    rows: list[dict[str, Any]] = []
    for group in groups:
        rows += _rows(group, group.scored, is_baseline=False)
        if group.baseline is not None:
            rows += _rows(group, group.baseline, is_baseline=True)
    if rows:
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        pq.write_table(table, path, compression="none", use_dictionary=False)


def read_groups(path: Path, prompts: PromptDataset, sampler: PromptSampler) -> list[FinishedGroup]:
    """The groups of a checkpoint, by number; none if it has no such file.

    Args:
        sampler: in the checkpoint's state.

    Raises:
        DataError: a prompt differs from the data's.
        RequestError: the file is damaged, a value is none that :func:`write_groups` writes, or the values take far more
            memory than the file has bytes.
    """
    if not path.is_file():
        return []
    with reading(path), _bounded_memory(path.stat().st_size):
        rows = _read(path)
        numbers = {row["number"]: None for row in rows}
        if any(number < sampler.next or number in sampler.done for number in numbers):
            raise ValueError("a group was trained before the checkpoint")
        of_groups: dict[int, list[Mapping[str, Any]]] = {number: [] for number in sorted(numbers)}
        for row in rows:
            of_groups[row["number"]].append(row)
        return [_group(number, rows, prompts[sampler.prompt(number)], path) for number, rows in of_groups.items()]


@contextlib.contextmanager
def _bounded_memory(size: int) -> Iterator[None]:
    """Within, an allocation fails if this process has grown far beyond a file of ``size`` bytes."""
    if sys.platform != "linux":
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + GROWTH * size + HEADROOM
    resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _read(path: Path) -> list[dict[str, Any]]:
    with pq.ParquetFile(path) as file:
        if not file.schema_arrow.equals(SCHEMA):
            raise TypeError(f"its columns are {file.schema_arrow.to_string(show_schema_metadata=False)}")
        table = file.read(use_threads=False)  # threads of pyarrow take address space
    table.validate(full=True)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


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
            "columns": columns_to_json(completion.columns),
            "episode": None if episode is None else _episode(episode),
            "start": None if own is group.prompt else {"messages": own.messages, "token_ids": list(own.token_ids)},
        }
        yield {
            "number": group.number,
            "is_baseline": is_baseline,
            "prompt_ids": group.prompt.token_ids,
            "token_ids": completion.token_ids,
            "log_probs": completion.log_probs,
            "facts": json.dumps(facts, default=_plain),
        }


def _episode(episode: Episode) -> dict[str, Any]:
    values = dataclasses.asdict(episode)
    for branch, own in zip(values["branches"], episode.branches, strict=True):
        branch["completion"]["columns"] = columns_to_json(own.completion.columns)
    return values


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch, in results of managers and environments, as Python's; anything else as a text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _group(number: int, rows: Sequence[Mapping[str, Any]], prompt: Prompt, path: Path) -> FinishedGroup:
    if any(tuple(row["prompt_ids"]) != tuple(prompt.token_ids) for row in rows):
        raise DataError(
            f"{path} has responses to another prompt than the data at place {number} of its order: resume with the "
            "data.train_files and the tokenizer of the checkpoint"
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
        completion_of(row["token_ids"], row["log_probs"], each) for row, each in zip(rows, facts, strict=True)
    ]
    lengths = [len(each.token_ids) for each in completions]
    has_episodes = facts[0]["episode"] is not None
    rollouts = Rollouts(
        [prompt if start is None else _changed(prompt, **start) for start in starts],
        completions,
        [typed("response", each["response"], (str,)) for each in facts],
        [0] * len(rows),
        [episode_of(each["episode"], length) for each, length in zip(facts, lengths, strict=True)]
        if has_episodes
        else None,
    )
    if not has_episodes and any(each["episode"] is not None for each in facts):
        raise ValueError("some responses of a group are episodes, others are not")
    return ScoredRollouts(rollouts, [result_of(each["result"]) for each in facts])


def _changed(prompt: Prompt, *, messages: list[Message], token_ids: Sequence[int]) -> Prompt:
    """The prompt as an agent began with it."""
    return dataclasses.replace(prompt, messages=messages_of(messages), token_ids=token_ids_of(token_ids))
