"""POST of JSON, with retries after growing, random pauses, within one deadline.

A redirect is an error: a token is sent only to the configured host.
"""

import json
import os
import random
import time
from collections.abc import Mapping
from typing import Any

import httpx

from corerl.contracts.surroundings import is_near
from corerl.errors import ConfigError
from corerl.secrets import reveal
from corerl_rewards.bounded import bound, until
from corerl_rewards.options import HttpOptions

AGAIN = (408, 429, 500, 502, 503, 504)
LARGEST_ANSWER = 64 << 20
LONGEST_PAUSE = 30.0
CONNECT_TIMEOUT = 10.0


class ServerError(Exception):
    """The server cannot be reached, or returns an error."""


class LateError(ServerError):
    """The deadline passed."""


class Poster:
    """Posts to one address.

    Raises:
        ConfigError: the variable of the token is not set.
    """

    def __init__(self, url: str, options: HttpOptions) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError("reward.manager", f"{url!r} is not an address: it must begin with http:// or https://")
        self.url = url
        self._options = options
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        headers |= {name: reveal(value) for name, value in options.headers.items()}
        if options.token_variable is not None:
            token = os.environ.get(options.token_variable)
            if not token:
                raise ConfigError(
                    "reward.manager.token_variable", f"the environment variable {options.token_variable} is not set"
                )
            headers["Authorization"] = f"Bearer {token}"
        self._client = client(url, headers=headers, follow_redirects=False)
        bound(self._client)

    def post(self, body: Mapping[str, Any], seconds: float) -> Any:
        """The server's answer, decoded.

        Args:
            seconds: limit of all attempts together.

        Raises:
            LateError: no attempt succeeded in that time.
            ServerError: the last attempt failed, or an attempt failed with an error that a retry cannot change.
        """
        data = json.dumps(body, default=str).encode()
        deadline = time.monotonic() + seconds
        for attempt in range(self._options.retries + 1):
            try:
                return self._attempt(data, deadline)
            except _Transient as error:
                pause = max(error.retry_after, random.uniform(0, self._options.backoff * 2**attempt))
                pause = min(pause, LONGEST_PAUSE)
                left = deadline - time.monotonic()
                if left > 0 and attempt == self._options.retries:
                    raise ServerError(f"{error}, at the last of {attempt + 1} attempts") from error
                if left <= pause:
                    raise LateError(
                        f"no answer of {self.url} within {seconds:g} s; the last attempt: {error}"
                    ) from error
                time.sleep(pause)
        raise AssertionError

    def close(self) -> None:
        """End all connections."""
        self._client.close()

    def _attempt(self, data: bytes, deadline: float) -> Any:
        left = max(0.01, deadline - time.monotonic())
        timeout = httpx.Timeout(left, connect=min(left, CONNECT_TIMEOUT))
        try:
            request = self._client.stream("POST", self.url, content=data, timeout=timeout)
            with until(deadline), request as answer:
                text = _read(answer, deadline)
        except (httpx.HTTPError, TimeoutError) as error:  # no connection, a broken one, a timeout
            raise _Transient(f"{self.url}: {type(error).__name__}: {error}") from error
        if not answer.is_success:
            said = " ".join(text[:500].decode(errors="replace").split())
            message = f"{self.url} answered {answer.status_code} {answer.reason_phrase}{f': {said}' if said else ''}"
            if answer.has_redirect_location:
                message += f"; it redirects to {answer.headers['location']!r:.200}, which is not followed"
            if answer.status_code in AGAIN:
                raise _Transient(message, _seconds(answer.headers.get("Retry-After")))
            raise ServerError(message)
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ServerError(f"{self.url} returned no JSON: {text[:200]!r}") from error


def client(url: str, **arguments: Any) -> httpx.Client:
    """A client for one address, which uses the proxies of the environment only for addresses of other networks."""
    limits = httpx.Limits()
    transport = httpx.HTTPTransport(limits=limits) if is_near(url) else None  # with a transport, httpx has no proxies
    return httpx.Client(transport=transport, limits=limits, **arguments)


class _Transient(Exception):
    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def _read(answer: httpx.Response, deadline: float) -> bytes:
    """The whole answer; the reading stops at the deadline."""
    text = bytearray()
    for part in answer.iter_raw():
        text += part
        if time.monotonic() > deadline:
            raise TimeoutError("the answer was not complete at the deadline")
        if len(text) > LARGEST_ANSWER:
            raise ServerError(f"an answer is larger than {LARGEST_ANSWER >> 20} MiB")
    return bytes(text)


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:  # a date
        return 0.0
