"""Messages between the two sides: a JSON object, then raw bytes, each preceded by its length. No pickle."""

import array
import asyncio
import json
import socket
import struct
from typing import Any

LENGTHS = struct.Struct("!QQ")

LONGEST = 2**30, 2**34
"""largest numbers of bytes of a header and of its payload; larger messages are refused"""


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    """One message."""
    text = json.dumps(header).encode()
    return b"".join((LENGTHS.pack(len(text), len(payload)), text, payload))


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """Wait for the next message.

    Raises:
        EOFError: the other side has closed the connection.
        ValueError: the message is invalid.
    """
    header_length, payload_length = _lengths(_exactly(connection, LENGTHS.size))
    return _header(_exactly(connection, header_length)), _exactly(connection, payload_length)


def _lengths(packed: bytes) -> tuple[int, int]:
    lengths: tuple[int, int] = LENGTHS.unpack(packed)
    if lengths[0] > LONGEST[0] or lengths[1] > LONGEST[1]:
        raise ValueError(f"a message of {lengths[0]} and {lengths[1]} bytes")
    return lengths


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("a header that is nested too deep") from None
    if not isinstance(header, dict):
        raise ValueError(f"a header that is no object but {header!r:.100}")
    return header


def _exactly(connection: socket.socket, length: int) -> bytes:
    received = bytearray(length)
    view, done = memoryview(received), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError
        done += count
    return bytes(received)


async def read(reader: asyncio.StreamReader) -> tuple[dict[str, Any], bytes]:
    """As :func:`receive`, for asyncio.

    Raises:
        asyncio.IncompleteReadError: the other side has closed the connection.
        ValueError: the message is invalid.
    """
    header_length, payload_length = _lengths(await reader.readexactly(LENGTHS.size))
    return _header(await reader.readexactly(header_length)), await reader.readexactly(payload_length)


def pack_numbers(token_ids: list[int], log_probs: list[float]) -> bytes:
    """Token ids as int32, then as many log-probs as float32, in the machine's byte order."""
    return array.array("i", token_ids).tobytes() + array.array("f", log_probs).tobytes()


def pack_columns(columns: "dict[str, tuple[Any, Any]]") -> tuple[list[Any], bytes]:
    """Columns of one sample: name, dtype, shape and bytes of the values, bytes of the counts; and all bytes."""
    facts, parts = [], []
    for name, (values, counts) in columns.items():
        own = [values.tobytes(), counts.astype("int32").tobytes()]
        facts.append([name, str(values.dtype), list(values.shape), *map(len, own)])
        parts += own
    return facts, b"".join(parts)


def unpack_numbers(payload: bytes) -> "tuple[array.array[int], array.array[float]]":
    """Inverse of :func:`pack_numbers`; lists would take nine times the memory."""
    middle = len(payload) // 2
    token_ids, log_probs = array.array("i"), array.array("f")
    token_ids.frombytes(payload[:middle])
    log_probs.frombytes(payload[middle:])
    return token_ids, log_probs
