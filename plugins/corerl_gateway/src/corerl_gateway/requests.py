"""From a request's bytes to the bytes of its answer."""

import asyncio
from collections.abc import Awaitable

from aiohttp import web

from corerl.contracts.agents import Model
from corerl.errors import CoreRLError, DataError, RefusedError, TooLongError
from corerl_gateway.bodies import read_body
from corerl_gateway.dialects.allowed import name_unread
from corerl_gateway.dialects.exchange import Exchange, dump
from corerl_gateway.dialects.routes import ROUTES, ModelList, dialect_of, split
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields, parse
from corerl_gateway.notices import say_unanswered
from corerl_gateway.sessions import Session, Sessions, ended

PING = b": the answer is on its way\n\n"
PING_SECONDS = 10.0
"""between two comments of a stream whose answer is not there yet"""
JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
ERROR = {**JSON, "x-should-retry": "false"}
"""clients of OpenAI and Anthropic repeat no request with this header"""


class Requests:
    """Answers requests.

    Args:
        most_bytes: of a body.
        timeout: in seconds, of reading a body, and of each write of an answer.
    """

    def __init__(self, sessions: Sessions, models: ModelList, most_bytes: int, timeout: float) -> None:
        self._sessions, self._models, self._most_bytes, self._timeout = sessions, models, most_bytes, timeout

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of the server."""
        number, path = split(request.path)
        try:
            session = self._sessions.find(number, request.headers)
            if request.method in ("GET", "HEAD"):
                return self._get(path)
            if path not in ROUTES:
                raise ApiError(404, f"there is no '/{path}' here", code="path_not_found")
            if request.method != "POST":
                raise ApiError(405, f"'/{path}' takes POST, not {request.method}")
            return await self._post(request, session, ROUTES[path])
        except ApiError as error:
            return _error(dialect_of(path), error)

    def _get(self, path: str) -> web.Response:
        found = self._models.find(path)
        if found is None:
            raise ApiError(404, f"there is no '/{path}' here", code="path_not_found")
        return web.Response(body=dump(found), headers=JSON)

    async def _post(self, request: web.BaseRequest, session: Session, dialect: type[Exchange]) -> web.StreamResponse:
        body = await read_body(request, self._most_bytes, self._timeout)
        exchange = _read(body, session, dialect)
        model = session.source(exchange.sampling)
        if not self._sessions.has(session):  # it ended while the body was read
            raise ended()
        mark = session.answers.mark(request.path, body, request.headers)
        with session.answers.asked(mark, request.headers, lambda: self._start(exchange, model, session)) as work:
            if exchange.stream:
                return await self._stream(request, exchange, work)
            return web.Response(body=await _result(work), headers=JSON)

    def _start(self, exchange: Exchange, model: Model, session: Session) -> "asyncio.Task[bytes]":
        work = asyncio.get_running_loop().create_task(_ask(exchange, model))
        session.start(work)
        return work

    async def _stream(
        self, request: web.BaseRequest, exchange: Exchange, work: "asyncio.Task[bytes]"
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=EVENTS)
        await self._in_time(response.prepare(request))
        try:
            while not work.done():
                await self._in_time(response.write(PING))
                await asyncio.wait((work,), timeout=PING_SECONDS)
            body = await _result(work)
        except ApiError as error:
            body = exchange.failure(error)
        await self._in_time(response.write(body))
        await self._in_time(response.write_eof())
        return response

    async def _in_time(self, writing: Awaitable[object]) -> None:
        async with asyncio.timeout(self._timeout):
            await writing


def _read(body: bytes, session: Session, dialect: type[Exchange]) -> Exchange:
    """Check a request.

    Raises:
        ApiError: it is wrong.
    """
    try:
        fields = Fields(parse(body))
        exchange = dialect(fields, session)
        name_unread(fields)
        return exchange
    except ApiError:
        raise
    except Exception as error:
        raise _unforeseen(error) from error


def _unforeseen(error: Exception) -> ApiError:
    """The answer to a request that met an error of the endpoint or of chats; a notice shows the error."""
    say_unanswered("the endpoint", error)
    return ApiError(500, f"{type(error).__name__} in the endpoint", code="internal_error")


async def _ask(exchange: Exchange, model: Model) -> bytes:
    """Ask the model, and write its answer; every error becomes one."""
    try:
        await exchange.ask(model)
        return b"".join(exchange.events()) if exchange.stream else dump(exchange.document())
    except ApiError:
        raise
    except DataError as error:
        raise ApiError(400, str(error), code="refused_by_template") from error
    except RefusedError as error:
        code = "context_length_exceeded" if isinstance(error, TooLongError) else "refused"
        raise ApiError(400, str(error), code=code) from error
    except CoreRLError as error:
        raise ApiError(500, str(error), code="run_error") from error
    except Exception as error:
        raise _unforeseen(error) from error


async def _result(work: "asyncio.Task[bytes]") -> bytes:
    """Wait for the answer.

    Raises:
        ApiError: the request failed, or its episode ended.
    """
    await asyncio.wait((work,))
    if work.cancelled():
        raise ended()
    return work.result()


def _error(dialect: type[Exchange], error: ApiError) -> web.Response:
    response = web.Response(status=error.status, body=dump(dialect.error(error)), headers=ERROR)
    if error.status in (408, 413, 415):  # the rest of the body is not read
        response.force_close()
    return response
