"""Frames on the socket between trainer and engine, from either side."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from corerl_engines.messages import completions_of
from corerl_engines.process import EngineKind, EngineProcess
from corerl_engines.remote import frames, server
from corerl_engines.remote.stops import StopTexts
from scripts.fuzz import mutations

KIND = EngineKind("fuzz", "Fuzz", Path(__file__).parent)
LENGTHS = (0, 1, 2, 16, 2**20, 2**31, 2**40, 2**63, 2**64 - 1)
REQUEST = {"request_id": "r", "prompt_ids": [1], "n": 1, "max_tokens": 1, "temperature": 1.0, "seed": 1}
OPERATIONS: list[dict[str, Any]] = [
    {"operation": "generate", "number": 1, "requests": [REQUEST]},
    {"operation": "abort", "number": 2, "request_ids": ["r"]},
    {"operation": "cancel", "number": 3, "call": 1},
    {"operation": "end_update", "number": 4, "version": 1},
    {"operation": "load", "number": 5, "bucket": {"source": {}, "tensors": []}, "verify": False},
    {"operation": "wake", "number": 6, "kv_cache": True},
]
ANSWERS: list[dict[str, Any]] = [
    {"event": "imported", "version": "1.0"},
    {"event": "ready", "vocabulary": 9, "devices": []},
    {"number": 1, "samples": [[1, "stop", 0]]},
    {"number": 2, "error": "no"},
]

cases = st.one_of(
    st.tuples(st.just("tree"), st.tuples(mutations.edits, st.binary(max_size=16))),
    st.tuples(st.just("bytes"), mutations.cuts),
    st.tuples(
        st.just("lengths"), st.tuples(st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), st.binary(max_size=40))
    ),
    st.tuples(st.just("text"), st.sampled_from(sorted(mutations.DEEP)) | st.text(max_size=20)),
    st.tuples(st.just("text"), mutations.values.map(json.dumps)),
)


def _stream(case: Any, messages: list[dict[str, Any]]) -> bytes:
    kind, given = case
    if kind == "tree":
        return b"".join(frames.pack(each, given[1]) for each in mutations.changed(messages, given[0]))
    if kind == "lengths":
        return frames.LENGTHS.pack(*given[:2]) + bytes(given[2])
    if kind == "text":
        text = mutations.DEEP.get(given, given).encode(errors="surrogatepass")
        return frames.LENGTHS.pack(len(text), 0) + bytes(text)
    return mutations.damaged(b"".join(frames.pack(each, b"12345678") for each in messages), given)


class Answers:
    """What an engine sends: every wait of the trainer ends, with an answer or an error of CoreRL's own."""

    name, seconds, processes = "answers", 30.0, True
    cases = cases

    def prepare(self, folder: Path) -> None:
        """A program in an engine's place: it sends a file and ends."""
        self.program = folder / "engine"
        self.program.write_text(f'#!/bin/bash\ncat "{folder}/case/stream" >&"$3"\nread -t 0.05 -u "$3"\n')
        self.program.chmod(0o755)

    def read(self, case: Any, folder: Path) -> None:
        stream = folder / "stream"
        stream.write_bytes(_stream(case, ANSWERS))
        process = EngineProcess(KIND, str(self.program), {}, {}, logs=folder)
        try:
            _, future = process.submit("generate", requests=[])
            process.wait_for("imported", 20, "importing")
            process.wait_for("ready", 20, "starting")
            answer = future.result(20)
            process.checked(answer[0])
            completions_of(answer)
        finally:
            process.close()


class _Engine:
    """Takes whatever it is asked for."""

    vocabulary = 9
    dead = ZeroDivisionError

    def __getattr__(self, name: str) -> Any:
        async def take(*arguments: Any) -> Any:
            return ([], set()) if name == "end_update" else []

        return take


async def _send(connection: socket.socket, stream: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, stream)
    connection.shutdown(socket.SHUT_WR)


class Operations:
    """What a trainer sends: the engine's half answers, or ends by an end of the stream."""

    name, seconds, processes = "operations", 20.0, False
    cases = cases

    def prepare(self, folder: Path) -> None:
        pass

    def read(self, case: Any, folder: Path) -> None:
        asyncio.run(self._serve(_stream(case, OPERATIONS)))

    async def _serve(self, stream: bytes) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=theirs)
        sending = asyncio.create_task(_send(ours, stream))
        stops = StopTexts("", trust_remote_code=False)
        half = server.Server(_Engine(), writer, loaded=True, stops=stops)  # type: ignore[arg-type]
        try:
            await asyncio.wait_for(half._read(reader), 10)
        except (asyncio.IncompleteReadError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # the process of the engine ends with it, and says so
        finally:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            ours.close()
            writer.close()
