"""The samples of a run: ``rollouts/step_*.parquet``."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corerl.files import reading
from corerl_tools.episodes.columns import shortened
from corerl_tools.episodes.conversation import Conversation, Item, conversation
from corerl_tools.episodes.messages import as_text
from corerl_tools.evaluation.files import as_rows
from corerl_tools.report.curves import Array
from corerl_tools.report.distributions import distribution

TOKEN_COLUMNS = ("token_ids", "token_texts", "log_probs", "rollout_log_probs", "ref_log_probs", "advantages")
MOST_TOKENS = 1_500_000
"""tokens of all samples; tokens beyond a sample's share are shown as plain text"""

MOST_CHARACTERS = 30_000_000
FEWEST_TOKENS, FEWEST_CHARACTERS = 512, 2000
"""smallest share of a sample, in tokens and characters"""


@dataclass(frozen=True)
class Samples:
    """Samples of one run, by step, and the distributions over all written responses."""

    rows: list[dict[str, Any]]
    length: dict[str, Any] | None
    score: dict[str, Any] | None


def read_samples(folder: Path, most: int) -> Samples:
    """At most ``most`` samples, spread evenly over the files; the first of each file, so that groups stay together."""
    with reading(folder / "rollouts"):
        return _read(sorted(filter(Path.is_file, (folder / "rollouts").glob("step_*.parquet"))), most)


def _read(files: Sequence[Path], most: int) -> Samples:
    steps = [int(re.sub(r"\D", "", file.stem)) for file in files]
    score, length = _columns(files)
    rows: list[dict[str, Any]] = []
    chosen = evenly(len(files), most)
    tokens = max(FEWEST_TOKENS, MOST_TOKENS // max(1, most))
    characters = max(FEWEST_CHARACTERS, MOST_CHARACTERS // max(1, most))
    for number, index in enumerate(chosen):
        share = (number + 1) * most // len(chosen) - number * most // len(chosen)
        first = enumerate(_first_rows(files[index], share, tokens))
        rows += [sample(steps[index], row, characters, number) for number, row in first]
    return Samples(rows, distribution(steps, length), distribution(steps, score))


def evenly(count: int, most: int) -> list[int]:
    """At most ``most`` of ``range(count)``, evenly spread, including the first and the last.

    >>> evenly(10, 4)
    [0, 3, 6, 9]
    """
    if count <= most:
        return list(range(count))
    return sorted({round(position * (count - 1) / max(1, most - 1)) for position in range(most)})


def sample(step: int, row: dict[str, Any], characters: int, number: int = 0) -> dict[str, Any]:
    """The fields of one response for the page; keys are short because they are written thousands of times.

    Args:
        number: of the row in its file.
    """
    talk = conversation(row)
    items = [_item(each, characters) for each in talk.items]
    response = shortened(str(row.get("response") or ""), characters)
    if items and items[-1] == ["response", response]:
        items[-1] = ["response", ""]  # the page has this text once
    return {
        "step": step,
        "row": number,
        "group": row.get("group"),
        "source": row.get("data_source"),
        "score": row.get("score"),
        "components": row.get("components") or {},
        "extracted": row.get("extracted"),
        "truth": shortened(as_text(row.get("ground_truth")), 300),
        "error": row.get("error"),
        "length": row.get("response_length"),
        "prompt_length": row.get("prompt_length"),
        "finish": row.get("finish_reason"),
        "version": row.get("weight_version"),
        "messages": [[each.role, shortened(each.text, characters)] for each in talk.prompt],
        "response": response,
        "items": items,
        **_tokens(row),
        **_episode(talk, characters),
    }


def _item(item: Item, characters: int) -> list[Any]:
    """[role, text], and if there is more, an object."""
    said, asked = item.said, item.asked
    more: dict[str, Any] = {}
    if said.calls:
        more["calls"] = [[name, shortened(arguments, characters)] for name, arguments in said.calls]
    if said.reasoning:
        more["reasoning"] = shortened(said.reasoning, characters)
    if said.name:
        more["name"] = shortened(said.name, 100)
    if item.tokens is not None:
        more["at"] = item.tokens
    if asked is not None:
        more |= {"turn": asked.number, "sampled": asked.sampled}
        if asked.times is not None and asked.request is not None:
            more["times"] = [round(each, 4) for each in (asked.times.tool, asked.times.waiting, asked.times.generating)]
            more["finish"] = asked.request.finish_reason
        if asked.reward is not None:
            more["reward"] = asked.reward
    text = shortened(said.text, characters)
    return [said.role, text, more] if more else [said.role, text]


def _episode(talk: Conversation, characters: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if talk.seconds:
        found["seconds"] = {kind: round(value, 4) for kind, value in talk.seconds.items()}
        found["requests"] = len(talk.requests)
    if talk.left_out:
        found["left_out"] = f"left out: {talk.left_out}"
    if talk.artifacts:
        found["artifacts"] = {name: shortened(text, characters) for name, text in talk.artifacts.items()}
    if talk.branches:
        found["branches"] = [
            {
                "shared": each.shared,
                "after": each.after,
                "items": [_item(item, characters) for item in each.items],
                "length": each.row["response_length"],
                "response": "",
                **_tokens(each.row),
            }
            for each in talk.branches
        ]
    return found


def _tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    """``tokens``: texts; ``log_probs`` and ``kl``: hundredths of a nat; ``advantages``: one number if all are equal."""
    texts, log_probs = row.get("token_texts"), row.get("log_probs") or row.get("rollout_log_probs")
    if texts is None or log_probs is None:
        return {}
    values = np.array(log_probs, float)
    found = {"tokens": [sys.intern(text) for text in texts], "log_probs": _hundredths(values)}
    if row.get("ref_log_probs") is not None and row.get("log_probs") is not None:
        found["kl"] = _hundredths(values - np.array(row["ref_log_probs"], float))
    if row.get("advantages") is not None:
        advantages = [float(f"{value:.3g}") for value in row["advantages"]]
        found["advantages"] = advantages[0] if len(set(advantages)) == 1 else advantages
    return found


def _hundredths(values: Array) -> list[int | None]:
    return [round(100 * value) if np.isfinite(value) else None for value in values.tolist()]


def _columns(files: Sequence[Path]) -> tuple[list[Array], list[Array]]:
    """Scores and lengths of all responses of each file."""
    names = ["score", "response_length"]
    rows = [as_rows(pq.ParquetFile(file).read(columns=names)) for file in files]
    score, length = ([np.array([row[name] for row in of_file], float) for of_file in rows] for name in names)
    return score, length


def _first_rows(file: Path, count: int, tokens: int) -> list[dict[str, Any]]:
    reader = pq.ParquetFile(file)
    if count < 1 or reader.metadata.num_rows == 0:
        return []
    table = pa.Table.from_batches([next(reader.iter_batches(batch_size=count))])
    for name in set(TOKEN_COLUMNS) & set(table.column_names):
        if pa.types.is_list(table[name].type):
            column = pc.list_slice(table[name], 0, tokens)
            table = table.set_column(table.column_names.index(name), name, column)
    return as_rows(table.replace_schema_metadata(reader.schema_arrow.metadata))
