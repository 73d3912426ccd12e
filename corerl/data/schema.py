"""The columns of a prompt file.

::

    data_source    string                       selects the scorer
    prompt         list<struct<role, content>>  the chat that the model continues
    reward_model   struct<style, ground_truth>  what the scorer compares with; any type of ground_truth
    extra_info     struct, may be missing       handed to the scorer
    tools          list, may be missing         schemas, rendered by the chat template
    images         any, may be missing          handed to the rollout backend as it is, as are videos
    ability        string, may be missing       for the reader; nothing here depends on it

Null fields of messages and tools are left out. Other columns are not read. A row without a ground truth is skipped and
counted. Any other error in a row ends the reading and names file, row and column.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corerl.data.files import Row, read_parquet
from corerl.data.messages import Message, check_messages, check_tools, shown, without_nulls
from corerl.data.report import LoadReport, Location
from corerl.errors import DataError

REQUIRED_COLUMNS = ("data_source", "prompt", "reward_model")
MEDIA_COLUMNS = ("images", "videos")
OPTIONAL_COLUMNS = ("extra_info", "tools", *MEDIA_COLUMNS)


@dataclass(frozen=True)
class PromptRecord:
    """One row, checked."""

    location: Location
    messages: list[Message]
    data_source: str
    ground_truth: Any
    extra_info: Mapping[str, Any]
    media: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()


def prompt_rows(file: str, columns: Mapping[str, str]) -> list[Row]:
    """The rows of a prompt file under the names above.

    Args:
        columns: ``data.columns``.

    Raises:
        DataError: as for :func:`corerl.data.files.read_parquet`, or ``columns`` has a name that is none of those above.
    """
    names = {name: name for name in (*REQUIRED_COLUMNS, *OPTIONAL_COLUMNS)}
    if unknown := [name for name in columns if name not in names]:
        raise DataError(f"data.columns: {unknown[0]} is no column of CoreRL, which has {', '.join(names)}")
    names |= columns
    required, optional = ([names[name] for name in each] for each in (REQUIRED_COLUMNS, OPTIONAL_COLUMNS))
    rows = read_parquet(file, required, optional)
    if not columns:
        return rows
    return [(place, {name: row[own] for name, own in names.items() if own in row}) for place, row in rows]


def read_prompt_records(
    files: Sequence[str],
    report: LoadReport,
    max_rows: int | None = None,
    rows: Sequence[Row] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[PromptRecord]:
    """The rows of parquet files, in order.

    Args:
        files: parquet files with the columns above.
        report: receives the counts; rows with an empty ground truth are skipped.
        max_rows: number of first rows of all files together.
        rows: in place of those of the files.

    Raises:
        DataError: a file or a row is wrong.
    """
    if rows is None:
        rows = [row for file in files for row in prompt_rows(file, columns or {})]
    records = []
    for location, row in rows[:max_rows]:
        report.rows_read += 1
        record = read_record(location, row)
        if is_empty(record.ground_truth):
            report.skip("empty reward_model.ground_truth", location)
        else:
            records.append(record)
    return records


def read_record(location: Location, row: Mapping[str, Any]) -> PromptRecord:
    """One row, checked.

    Raises:
        DataError: a column is of a wrong type, or the chat ends with the assistant.
    """
    data_source, reward_model, extra_info = row["data_source"], row["reward_model"], row.get("extra_info")
    if not isinstance(data_source, str) or not data_source:
        raise DataError(f"{location}, column 'data_source': must be a non-empty string, not {shown(data_source)}")
    if not isinstance(reward_model, Mapping) or "ground_truth" not in reward_model:
        raise DataError(
            f"{location}, column 'reward_model': must be a struct {{style, ground_truth}}, not {shown(reward_model)}"
        )
    if extra_info is not None and not isinstance(extra_info, Mapping):
        raise DataError(f"{location}, column 'extra_info': must be a struct or null, not {shown(extra_info)}")
    messages = check_messages(without_nulls(row["prompt"]), location, "prompt")
    if messages[-1]["role"] == "assistant":
        raise DataError(
            f"{location}, column 'prompt': ends with an answer of the assistant, behind which a second turn would "
            "open; end it with the message to answer"
        )
    tools = check_tools(without_nulls(row.get("tools")), location)
    media = {name: row[name] for name in MEDIA_COLUMNS if row.get(name) is not None and row[name] != []}
    return PromptRecord(location, messages, data_source, reward_model["ground_truth"], extra_info or {}, media, tools)


def is_empty(ground_truth: Any) -> bool:
    """Whether there is no answer: null, NaN, blank text, or a struct or list of these. 0 and false are answers."""
    if isinstance(ground_truth, str):
        return not ground_truth.strip()
    if isinstance(ground_truth, Mapping):
        return all(map(is_empty, ground_truth.values()))
    if isinstance(ground_truth, list):
        return all(map(is_empty, ground_truth))
    return ground_truth is None or (isinstance(ground_truth, float) and math.isnan(ground_truth))
