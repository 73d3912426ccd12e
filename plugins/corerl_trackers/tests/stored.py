"""What libraries of trackers have stored, offline."""

import json
import math
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path


def records_of(path: Path, header: int = 7) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, which W&B writes after a header of its own."""
    data, position, record = path.read_bytes(), header, b""
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


Stored = dict[tuple[str, int], float]
SAMPLES = "val/generations"
"""the name of the table of samples"""


def of_tensorboard(folder: Path) -> Stored:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {(tag, each.step): each.value for tag in events.Tags()["scalars"] for each in events.Scalars(tag)}


def of_wandb(folder: Path) -> Stored:
    from wandb.proto import wandb_internal_pb2

    stored: Stored = {}
    [path] = folder.glob("wandb/offline-run-*/*.wandb")
    for data in records_of(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for name, value in items.items():
            if not name.startswith(("_", SAMPLES)):
                stored[name, int(items["_step"])] = float(json.loads(value))
    return stored


def of_swanlab(folder: Path) -> Stored:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    stored: Stored = {}
    [path] = folder.glob("swanlab/run-*/run-*.swanlab")
    reader = DataStoreReader()
    reader.open(path)
    for data in reader:
        record = Record()
        record.ParseFromString(data)
        if record.scalar.key:
            stored[record.scalar.key, record.scalar.step] = record.scalar.value.number
    return stored


def of_mlflow(folder: Path) -> Stored:
    with sqlite3.connect(folder / "mlflow.db") as database:
        rows = database.execute("SELECT key, step, value, is_nan FROM metrics").fetchall()
    return {(key, step): math.nan if is_nan else value for key, step, value, is_nan in rows}


def of_trackio(folder: Path) -> Stored:
    with sqlite3.connect(folder / "trackio" / "project.db") as database:
        rows = database.execute("SELECT step, metrics FROM metrics").fetchall()
    stored = {}
    for step, metrics in rows:
        numbers = {name: value for name, value in json.loads(metrics).items() if name != SAMPLES}
        stored |= {(name, step): float(value) for name, value in numbers.items()}
    return stored


def of_clearml(folder: Path) -> Stored:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    events = [event for line in lines for event in json.loads(line)]
    return {
        ("/".join(dict.fromkeys((event["metric"], event["variant"]))), event["iter"]): event["value"]
        for event in events
        if "value" in event
    }


READERS = {
    "tensorboard": of_tensorboard,
    "wandb": of_wandb,
    "swanlab": of_swanlab,
    "mlflow": of_mlflow,
    "trackio": of_trackio,
    "clearml": of_clearml,
}
