"""The HTTP server: keys, bodies, results to come, errors."""

import asyncio
import hmac
import json
import time
from collections.abc import Mapping

from aiohttp import web

from corerl.errors import CoreRLError
from corerl_gateway.bodies import read_body
from corerl_gateway.endpoint import BACKLOG, ENDING, LINGERING, listen, more_files, origin, silent_logger
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields, parse
from corerl_gateway.notices import say_unanswered
from corerl_gateway.options import EndpointOptions
from corerl_tinker.api.futures import Answer
from corerl_tinker.api.routes import PREFIX, Routes
from corerl_tinker.api.service import Service
from corerl_tinker.errors import UserError

JSON, BINARY = "application/json", "application/x-protobuf"
TIDY = 1.0
"""seconds between looks at sessions that have gone"""


class Server:
    """Serves clients of Tinker.

    Args:
        owners: key -> owner, '' if there is one key.
    """

    def __init__(self, service: Service, options: EndpointOptions, owners: Mapping[str, str]) -> None:
        self._service, self._options, self._owners = service, options, dict(owners)
        self._routes = Routes(service)

    async def run(self, stopping: asyncio.Event, started: "asyncio.Future[str]") -> None:
        """Serve until ``stopping``; ``started`` gets the base URL.

        Raises:
            RunError: the port is taken.
        """
        listening = listen(self._options.host, self._options.port)
        more_files()
        handler = web.Server(
            self.answer,
            handler_cancellation=True,
            access_log=None,
            logger=silent_logger("corerl_tinker.http"),
            auto_decompress=False,
            keepalive_timeout=self._options.timeout,
            lingering_time=LINGERING,
        )
        server = await asyncio.get_running_loop().create_server(handler, sock=listening, backlog=BACKLOG)
        tidying = asyncio.get_running_loop().create_task(self._tidy())
        started.set_result(origin(self._options, listening))
        try:
            await stopping.wait()
        finally:
            server.close()
            tidying.cancel()
            self._service.fail_all()
            await asyncio.sleep(0)  # waiting clients get their errors
            await handler.shutdown(ENDING)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of the server."""
        try:
            owner = self._owner(request.headers)
            if not request.path.startswith(PREFIX):
                raise ApiError(404, f"there is no {request.path!r:.120} here")
            path = request.path.removeprefix(PREFIX)
            if request.method in ("GET", "HEAD"):
                return _response(self._routes.get(owner, path))
            if request.method == "DELETE":
                return _response(self._routes.delete(owner, path))
            if request.method != "POST":
                raise ApiError(405, f"{request.method} is not served here")
            body = await read_body(request, int(self._options.max_body_mb * 2**20), self._options.timeout)
            if path == "retrieve_future":
                return await self._result(owner, request.headers, Fields(parse(body)))
            return _response(self._routes.post(owner, path, body))
        except ApiError as error:
            return _error(error.status, error.message)
        except UserError as error:
            return _error(400, str(error))
        except CoreRLError as error:
            return _error(500, str(error))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:  # an error of the server, which must not end it
            say_unanswered("the server", error)
            return _error(500, f"{type(error).__name__} in the server")

    async def _result(self, owner: str, headers: Mapping[str, str], fields: Fields) -> web.Response:
        """Wait for a result; 408 if it takes longer than a poll, after which the client asks again."""
        request_id = fields.text("request_id")
        future = self._service.futures.find(request_id)
        if future is None or future.owner != owner:
            raise ApiError(404, f"there is no request {request_id!r:.120}: its result is dropped, or it never was")
        if (session := self._service.sessions.get(future.session_id)) is not None:
            session.touch()
        if future.answer is None:
            try:
                async with asyncio.timeout(self._service.options.poll_timeout):
                    await future.event.wait()
            except TimeoutError:
                again = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
                return web.json_response(again, status=408)
        assert future.answer is not None
        if future.answer.is_binary and BINARY not in headers.get("Accept", ""):
            raise ApiError(406, f"the result of {request_id!r:.120} is a binary message: accept {BINARY}")
        future.read = time.monotonic()
        return _response(future.answer)

    def _owner(self, headers: Mapping[str, str]) -> str:
        """
        Raises:
            ApiError: 401: no key, or a wrong one.
        """
        given = headers.get("X-API-Key", "").encode(errors="surrogateescape")
        for key, owner in self._owners.items():
            if hmac.compare_digest(given, key.encode()):
                return owner
        raise ApiError(401, "the key is wrong or missing: set TINKER_API_KEY to that of the server")

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY)
            self._service.tidy()


def _response(answer: Answer) -> web.Response:
    return web.Response(body=answer.body, content_type=BINARY if answer.is_binary else JSON)


def _error(status: int, message: str) -> web.Response:
    response = web.Response(status=status, body=json.dumps({"detail": message}).encode(), content_type=JSON)
    if status in (408, 413, 415):  # the rest of the body is not read
        response.force_close()
    return response
