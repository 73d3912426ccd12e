"""The endpoint of a run: one server, in the event loop of its episodes."""

import asyncio
import functools
import logging
import resource
import socket
from collections.abc import Mapping

from aiohttp import web

from corerl.contracts.agents import Address, Model
from corerl.contracts.config import TrainConfig
from corerl.contracts.surroundings import reach_directly
from corerl.errors import RunError
from corerl_gateway.dialects.routes import ModelList
from corerl_gateway.notices import say_once
from corerl_gateway.options import KEY, EndpointOptions
from corerl_gateway.requests import Requests
from corerl_gateway.sessions import Session, Sessions

BACKLOG = 4096
"""connections that wait to be accepted"""
FILES = 65_536
"""open files that the process may have, if its hard limit allows; each connection is one"""
LINGERING = 1.0
"""seconds in which the rest of a refused body is read and dropped, so that the client sees the answer"""
ENDING = 1.0
"""seconds for requests under way once the event loop ends"""


class HttpEndpoint:
    """See :class:`corerl.contracts.agents.Endpoint`.

    Args:
        sampling: of the run, by name; other values in requests have no effect, and a notice says so once.
    """

    def __init__(self, options: EndpointOptions, models: ModelList, sampling: Mapping[str, float]) -> None:
        self._options, self._sampling = options, sampling
        self._sessions = Sessions()
        self._requests = Requests(self._sessions, models, int(options.max_body_mb * 2**20), options.timeout)
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._origin = ""
        reach_directly(options.public_host or options.host)

    def open(self, model: Model) -> Address:
        """See :meth:`corerl.contracts.agents.Endpoint.open`.

        Raises:
            RunError: the address cannot be listened on, or the server ended.
        """
        return self.add(Session(functools.partial(self._policy, model)))

    def add(self, session: Session) -> Address:
        """Serve a session; the server starts with the first."""
        self._start()
        self._sessions.add(session)
        place = f"/{session.number}" if session.number else ""
        return Address(f"{self._origin}{place}/v1", session.key)

    def shut(self, address: Address) -> None:
        """See :meth:`corerl.contracts.agents.Endpoint.shut`."""
        self._sessions.remove(address.base_url.removesuffix("/v1").removeprefix(self._origin).lstrip("/"))

    def close(self) -> None:
        """See :meth:`corerl.contracts.agents.Endpoint.close`."""
        serving = self._serving
        if serving is not None and not serving.done() and not serving.get_loop().is_closed():
            serving.cancel()  # which closes the socket
        elif self._socket is not None:
            self._socket.close()

    def _policy(self, model: Model, sampling: Mapping[str, float]) -> Model:
        ignored = [name for name, value in sampling.items() if value != self._sampling.get(name)]
        if ignored:
            say_once(f"requests to the endpoint set {', '.join(ignored)}: a run samples as 'rollout' has it")
        return model

    def _start(self) -> None:
        if self._serving is None:
            self._socket = listen(self._options.host, self._options.port)
            self._origin = origin(self._options, self._socket)
            self._serving = asyncio.get_running_loop().create_task(self._serve(self._socket))
        elif self._serving.done():
            raise RunError("the server of the endpoint has ended")

    async def _serve(self, listening: socket.socket) -> None:
        """Serve until the event loop ends."""
        more_files()
        handler = web.Server(
            self._requests.answer,
            handler_cancellation=True,
            access_log=None,
            logger=silent_logger("corerl_gateway.http"),
            auto_decompress=False,
            keepalive_timeout=self._options.timeout,
            lingering_time=LINGERING,
        )
        server = await asyncio.get_running_loop().create_server(handler, sock=listening, backlog=BACKLOG)
        try:
            await server.serve_forever()
        finally:
            await handler.shutdown(ENDING)


def make_endpoint(config: TrainConfig, options: EndpointOptions) -> HttpEndpoint:
    """The endpoint of a run."""
    rollout, data = config.rollout, config.data
    sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
    return HttpEndpoint(
        options, model_list(config.model.path, data.max_prompt_length + data.max_response_length), sampling
    )


def model_list(path: str, room: int) -> ModelList:
    """The list of the one model, named like its folder."""
    return ModelList(path.rstrip("/").rpartition("/")[2] or "policy", room)


def silent_logger(name: str) -> logging.Logger:
    """A logger without output: aiohttp's errors quote malformed headers, which may hold a key."""
    logger = logging.Logger(name)
    logger.disabled = True
    return logger


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        RunError: the port is taken, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise RunError(
            f"the endpoint cannot listen on port {port} of {host} ({error.strerror or error}): "
            f"set {KEY}.host and {KEY}.port to an address of this machine and a free port, or port to 0"
        ) from None
    listening.setblocking(False)
    return listening


def origin(options: EndpointOptions, listening: socket.socket) -> str:
    """The begin of every address: scheme, host, port."""
    host = options.public_host or options.host
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def more_files() -> None:
    """Allow as many open files as connections of thousands of episodes need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
