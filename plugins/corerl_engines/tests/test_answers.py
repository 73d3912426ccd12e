"""Whatever an engine's process sends, nobody waits for its deadline."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corerl.errors import RunError
from corerl_engines.messages import completions_of
from corerl_engines.process import EngineKind, EngineProcess
from corerl_engines.remote import frames

KIND = EngineKind("made-up", "Made-up", Path(__file__).parent)

Start = Callable[[bytes], EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """An engine's process that sends these bytes and then reads until the other side hangs up."""
    started: list[EngineProcess] = []

    def start(stream: bytes) -> EngineProcess:
        (tmp_path / "stream").write_bytes(stream)
        program = tmp_path / "engine"
        program.write_text(f'#!/bin/bash\ncat "{tmp_path}/stream" >&"$3"\ncat <&"$3" > /dev/null\n')
        program.chmod(0o755)
        started.append(EngineProcess(KIND, str(program), {}, {}))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize(
    "stream",
    [
        frames.LENGTHS.pack(2**63, 0),
        frames.LENGTHS.pack(0, 2**64 - 1),
        frames.LENGTHS.pack(3, 0) + b"not",
        frames.LENGTHS.pack(2, 0) + b"\xff\xfe",
        frames.LENGTHS.pack(100_000, 0) + b"[" * 100_000,
        frames.pack({"neither": "event nor number"}),
        frames.pack({"number": []}),
        frames.pack({"event": {}}),
        frames.pack({"event": "missing"}),
        *(frames.LENGTHS.pack(len(text), 0) + text for text in (b"[]", b"null", b"1", b'"event"')),
    ],
    ids=repr,
)
def test_what_is_no_message_ends_the_engine_and_every_wait(start: Start, stream: bytes) -> None:
    with pytest.raises(RunError, match=r"^the Made-up engine \(process \d+\) sent an invalid message"):
        start(stream).wait_for("ready", 60, "the start")


@pytest.mark.parametrize(
    "samples",
    [
        None,
        [1],
        [[1, "stop"]],
        [[1, "stop", [[0, 0]]]],
        [[1, "stop", [[0, 0]], None]],
        [[1, "stop", [[0, 0]], [["kept", "int32", [1], 4, 4]]]],
        [[1, "stop", [[0, 0]], [["kept", "object", [0], 0, 0]]]],
        [[1, "stop", [[0, 0]], [["kept", "int32", [-1], 0, 0]]]],
        [["1", "stop", [[0, 0]], []]],
        [[2, "stop", [[0, 0]], []]],
        [[-1, "stop", [[0, 0]], []], [2, "stop", [[0, 0]], []]],
        [[1, "x", [[0, 0]], []]],
        [[1, "stop", 0, []]],
        [[1, "stop", [], []]],
        [[1, "stop", [[1, 0]], []]],
        [[1, "stop", [[0, "0"]], []]],
        [[1, "stop", [[0, 0], [2, 1], [1, 2]], []]],
        [[1, "stop", [[0, 0], [0, 1]], []]],
    ],
    ids=json.dumps,
)
def test_an_answer_whose_samples_do_not_fit_its_tokens_is_an_error(samples: object) -> None:
    with pytest.raises(RunError, match="the engine's answer to generate is invalid"):
        completions_of(({"samples": samples}, frames.pack_numbers([5], [-0.5])))


def test_an_answer_that_is_cut_off_is_an_error() -> None:
    with pytest.raises(RunError, match="the engine's answer to generate is invalid"):
        completions_of(({"samples": [[1, "stop", [[0, 0]], []]]}, b"12345"))


def test_each_token_has_the_version_of_its_weights() -> None:
    samples = [[2, "stop", [[0, 3], [1, 4], [2, 5]], []], [1, "length", [[0, 5]], []]]
    first, second = completions_of(({"samples": samples}, frames.pack_numbers([5, 6, 7], [-0.5, -0.5, -0.5])))
    assert (first.version_runs(), second.version_runs()) == ([(0, 1, 3), (1, 2, 4)], [(0, 1, 5)])


def test_columns_of_tokens_arrive_as_they_were_sent() -> None:
    import numpy as np

    kept = np.array([5, 9, 6], np.int32), np.array([2, 1], np.int32)
    experts = np.arange(12, dtype=np.uint8).reshape(2, 3, 2), np.array([1, 1, 0], np.int32)
    own, payload = frames.pack_columns({"kept": kept, "experts": experts})
    samples = [[2, "stop", [[0, 3]], own], [1, "length", [[0, 3]], []]]
    numbers = frames.pack_numbers([5, 6, 7], [-0.5, -0.5, -0.5])
    first, second = completions_of((json.loads(json.dumps({"samples": samples})), numbers + payload))
    assert not second.columns and [*first.columns] == ["kept", "experts"]
    for name, (values, counts) in {"kept": kept, "experts": experts}.items():
        assert (first.columns[name].values == values).all() and (first.columns[name].counts == counts).all()
    with pytest.raises(RunError, match="the engine's answer to generate is invalid"):
        completions_of(({"samples": samples}, numbers + payload + b"1234"))
