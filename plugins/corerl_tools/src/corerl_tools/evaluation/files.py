"""Files of responses: ``corerl generate`` and training's sample rollouts write them, ``score`` and ``eval`` read them.

One row for each response::

    data_source                 string      selects the scorer
    response                    string      the decoded text
    ground_truth                any         or reward_model.ground_truth, as in prompt files
    prompt, extra_info          any         optional, as are all of these:
    response_length             int         tokens
    max_response_length         int         limit of tokens
    finish_reason               string      stop or length
    prompt_index, group         int         equal for responses to one prompt; without both, and without a prompt,
                                            each row is a prompt of its own
    score, components, extracted, error, error_kind     result of a scorer
    environment_reward          float       of an episode: part of the score, beside the scorer's
    environment_error           string      reason for a missing environment_reward
    episode                     messages    its turns after the prompt
    turn_runs                   [[int]]     (request that sampled them, tokens) of each run of tokens; -1: read
    turn_rewards                [float]     of its requests, in their order
    requests                    objects     its requests: RequestRecord of corerl.batch.rollouts
    seconds                     object      began (Unix time), played, scored
    artifacts                   object      name -> text
    branches                    objects     its further rows (corerl_tools.episodes.columns)

A row with a list ``responses`` stands for one row per element. Further columns are kept. Parquet files of CoreRL hold
columns without a fixed type (prompt, ground_truth, extra_info, components) as JSON; the file's metadata names them.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corerl.contracts.options import did_you_mean
from corerl.contracts.reward_managers import RewardRequest, RewardResult, error_kind
from corerl.data.files import Row, read_parquet_file
from corerl.data.report import Location
from corerl.errors import DataError
from corerl.files import atomic_path, reading
from corerl_check.jsonl import read_jsonl

JSON_COLUMNS = (
    *("prompt", "ground_truth", "extra_info", "components", "episode"),
    *("requests", "seconds", "artifacts", "branches", "turn_rewards", "turn_runs"),
)
"""columns without a fixed type"""

_METADATA_KEY = b"corerl.json"


@dataclass(frozen=True)
class Response:
    """One response of a file.

    Attributes:
        row: all columns, decoded.
        prompt: equal for responses to one prompt, also across files.
    """

    location: Location
    row: Mapping[str, Any]
    prompt: Hashable
    text: str
    data_source: str
    ground_truth: Any

    def reward_request(self, max_response_length: int) -> RewardRequest:
        """The request to a reward manager; ``max_response_length`` is used for rows without that column."""
        row = self.row
        return RewardRequest(
            response=self.text,
            ground_truth=self.ground_truth,
            data_source=self.data_source,
            extra_info=row.get("extra_info") or {},
            response_length=row.get("response_length") or 0,
            max_response_length=row.get("max_response_length") or max_response_length,
            truncated=row.get("finish_reason") == "length",
            prompt=row.get("prompt") or (),
        )

    @property
    def has_prompt(self) -> bool:
        """Whether the row names its prompt, by a prompt, an index or a group."""
        return self.prompt != self.location

    @property
    def is_cut_off(self) -> bool:
        """Whether the response ended at the limit of its length."""
        length, limit = self.row.get("response_length"), self.row.get("max_response_length")
        return self.row.get("finish_reason") == "length" or (
            self.row.get("finish_reason") is None and bool(limit) and (length or 0) >= (limit or 0)
        )

    @property
    def has_result(self) -> bool:
        """Whether the row has a score or an error of a scorer."""
        return self.row.get("score") is not None or self.row.get("error") is not None

    @property
    def result(self) -> RewardResult:
        """The scorer's result as stored in the row."""
        row = self.row
        return RewardResult(
            row.get("score"), row.get("components") or {}, row.get("extracted"), row.get("error"), row.get("error_kind")
        )


def read_responses(files: Sequence[str], data_source: str | None = None) -> list[Response]:
    """All responses of parquet and JSONL files, in order.

    Args:
        data_source: used for rows without one.

    Raises:
        DataError: a file or a row is wrong; the message names the file or row.
    """
    return [
        _response(location, one, data_source)
        for file in files
        for location, row in read_rows(file)
        for one in _exploded(location, row)
    ]


def read_rows(file: str) -> list[Row]:
    """The rows of one parquet or JSONL file; JSON columns are decoded.

    Raises:
        DataError: the file is missing, damaged, empty, or neither parquet nor JSONL.
    """
    suffix = Path(file).suffix
    if suffix in (".jsonl", ".json"):
        return read_jsonl(file)
    if suffix != ".parquet":
        raise DataError(f"{file}: files of responses end in .parquet, .jsonl or .json")
    table = read_parquet_file(file)
    with reading(Path(file)):
        return [(Location(file, number), row) for number, row in enumerate(as_rows(table))]


def as_rows(table: Any) -> list[dict[str, Any]]:
    """The rows of a pyarrow table made by :func:`as_table`; JSON columns are decoded."""
    encoded = json.loads((table.schema.metadata or {}).get(_METADATA_KEY, b"[]"))
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row.update({name: json.loads(row[name]) for name in encoded if row.get(name) is not None})
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a parquet or JSONL file (by suffix), atomically."""
    with atomic_path(path) as temporary:
        if path.suffix == ".parquet":
            pq.write_table(as_table(rows), temporary)
        else:
            encode = _encoder()
            temporary.write_text("".join(f"{encode(row)}\n" for row in rows), encoding="utf-8")


def as_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pyarrow table of rows; columns without a fixed type become JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {}
    encoded = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = None if name in JSON_COLUMNS else pa.array(values)
        except pa.ArrowException:  # values of several types
            columns[name] = None
        if columns[name] is None:
            encoded.append(name)
            columns[name] = pa.array(_encoded(values), pa.string())
    return pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(encoded)})


def result_columns(result: RewardResult) -> dict[str, Any]:
    """The columns filled by a scorer."""
    return {
        "score": result.score,
        "components": dict(result.components),
        "extracted": result.extracted,
        "error": result.error,
        "error_kind": None if result.score is not None else error_kind(result),
    }


def _encoded(values: Sequence[Any]) -> Iterator[str]:
    """Values as JSON; one that stands in several rows one after the other, as a group's prompt does, once."""
    encode = _encoder()
    last, text = None, encode(None)
    for value in values:
        if value is not last:
            last, text = value, encode(value)
        yield text


def _encoder() -> Callable[[Any], str]:
    return json.JSONEncoder(ensure_ascii=False, default=_plain).encode


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _exploded(location: Location, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row with ``responses`` as rows with ``response``."""
    if "responses" not in row:
        return [row]
    texts, rest = row["responses"], {name: value for name, value in row.items() if name != "responses"}
    if not isinstance(texts, list):
        raise DataError(f"{location}, column 'responses': must be a list of strings, not {type(texts).__name__}")
    return [{**rest, "response": text} for text in texts]


def _response(location: Location, row: Mapping[str, Any], data_source: str | None) -> Response:
    text, source = row.get("response"), row.get("data_source") or data_source
    if "response" not in row:
        raise DataError(f"{location}: has no 'response'{did_you_mean('response', row)}; it has {', '.join(row)}")
    if not isinstance(text, str):
        raise DataError(f"{location}, column 'response': must be a string, not {type(text).__name__}")
    if not isinstance(source, str):
        raise DataError(f"{location}: has no 'data_source', which selects the scorer; name one with --scorer")
    reward_model = row.get("reward_model")
    truth = row.get("ground_truth")
    if truth is None and isinstance(reward_model, Mapping):
        truth = reward_model.get("ground_truth")
    return Response(location, row, _prompt_key(location, row, truth), text, source, truth)


def _prompt_key(location: Location, row: Mapping[str, Any], truth: Any) -> Hashable:
    """Equal for responses to one prompt; without a prompt, its index and a group, a row is a prompt of its own."""
    if row.get("group") is not None:  # numbered anew in each file
        return location.file, row["group"]
    prompt, index = row.get("prompt"), row.get("prompt_index")
    if prompt is None and index is None:
        return location
    encode = _encoder()
    return (*map(encode, (prompt, row.get("images"), truth)), index)
