"""Environment ``openenv``: the sessions of a server that speaks OpenEnv's protocol."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from corerl.errors import ConfigError
from corerl.secrets import reveal
from corerl_envs import Start, Task, Turn
from corerl_openenv.actions import CALL_TOOL, calls_tools, parse_action, short_schema
from corerl_openenv.options import OpenEnvOptions
from corerl_openenv.session import Answer, ServerError, Session

KEY = "rollout.multi_turn.environment"
POLICY_FAULTS = ("VALIDATION_ERROR", "INVALID_JSON")
LARGEST_SCHEMA = 1 << 20
FORM = "An action is one JSON object of this schema, and nothing else:\n"


class OpenEnvEnvironment:
    """See :class:`corerl_envs.EndingEnvironment`.

    Raises:
        ConfigError: the server is not there, or announces no actions.
    """

    def __init__(self, *, options: OpenEnvOptions) -> None:
        self._options = options
        self._headers = {name: reveal(value) for name, value in options.headers.items()}
        self._schema = read_schema(options.url, self._headers, options.timeout)

    async def reset(self, task: Task, seed: int) -> Start:
        """Open a session; the first observation follows the prompt of the row."""
        options = self._options
        session = await Session.open(options.url, self._headers, options.timeout, options.max_message_mb)
        try:
            arguments = {**options.reset, **(task.extra_info.get("reset") or {})}
            if options.pass_seed:
                arguments.setdefault("seed", seed % (1 << 31))
            tools = await self._tools(session)
            answer = await session.ask("reset", {name: each for name, each in arguments.items() if each is not None})
        except BaseException:
            await session.close()
            raise
        return Start(session, self._first_messages(task, answer, tools))

    async def step(self, state: Session, response: str) -> Turn:
        """Pass the action in the policy's text to the server; a turn without one gets a message with the reason."""
        try:
            action = parse_action(response, self._schema)
        except ValueError as error:
            return self._fault(str(error))
        try:
            answer = await state.ask("step", action)
        except ServerError as error:
            if error.code in POLICY_FAULTS or (
                error.code == "EXECUTION_ERROR" and self._options.execution_errors == "policy"
            ):
                return self._fault(str(error))
            raise
        return Turn([self._message(self._text(answer))], answer.reward, answer.done, tool_calls=1)

    async def end(self, state: Session) -> None:
        """Close the session."""
        await state.close()

    def close(self) -> None:
        """Does nothing; each session ends with its episode."""

    async def _tools(self, session: Session) -> Any:
        """The tools of a server of tools, else None."""
        if not calls_tools(self._schema):
            return None
        answer = await session.ask("step", {"type": "list_tools"})
        return answer.observation.get("tools")

    def _first_messages(self, task: Task, answer: Answer, tools: Any) -> list[dict[str, Any]]:
        parts = [self._text(answer)]
        if self._options.describe_actions:
            schema = CALL_TOOL if tools is not None else self._schema
            parts.append(FORM + json.dumps(short_schema(schema), ensure_ascii=False))
        if tools is not None:
            parts.append("The tools:\n" + json.dumps(tools, ensure_ascii=False))
        *before, last = [dict(message) for message in task.messages] or [{"role": "user", "content": ""}]
        if last["role"] != "user":
            return [*before, last, {"role": "user", "content": "\n\n".join(parts)}]
        return [*before, {**last, "content": "\n\n".join(filter(None, (last["content"], *parts)))}]

    def _text(self, answer: Answer) -> str:
        field = self._options.observation
        if field is None:
            return json.dumps(answer.observation, ensure_ascii=False)
        if field not in answer.observation:
            raise ServerError(f"the observation has no field '{field}', only {', '.join(answer.observation) or 'none'}")
        value = answer.observation[field]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _message(self, text: str) -> dict[str, str]:
        return {"role": self._options.role, "content": text}

    def _fault(self, reason: str) -> Turn:
        message = self._message(f"error: {reason}")
        return Turn([message], -self._options.invalid_penalty, tool_calls=1, tool_errors=1)


def read_schema(url: str, headers: Mapping[str, str], timeout: float) -> Mapping[str, Any]:
    """The schema of a server's actions.

    Raises:
        ConfigError: the server is not there, or announces none.
    """
    request = urllib.request.Request(url.rstrip("/") + "/schema", headers=dict(headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        with opener.open(request, timeout=timeout) as reply:
            document = json.loads(reply.read(LARGEST_SCHEMA))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{KEY}.url", f"no OpenEnv server answers at {url}/schema: {error}") from error
    schema = document.get("action") if isinstance(document, dict) else None
    if not isinstance(schema, dict):
        raise ConfigError(f"{KEY}.url", f"the server at {url} announces no actions in /schema")
    return schema


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A header with a key is sent to the named host alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
