"""Reading of a request's body, with limits of bytes and time."""

import asyncio

from aiohttp import web

from corerl_gateway.errors import ApiError


async def read_body(request: web.BaseRequest, most_bytes: int, timeout: float) -> bytes:
    """The body, of which no more than the limit is read.

    Raises:
        ApiError: 408, 413 or 415.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "send the body without Content-Encoding")
    if (request.content_length or 0) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout):
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body took longer than {timeout:g} s") from None
    return bytes(body)


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, f"the body has more than {most_bytes} bytes: raise max_body_mb of the endpoint")
