"""The agent ``tools``: functions, limits, errors; MCP servers over pipes and HTTP."""

import asyncio
import re
import socket
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from chat_families import FAMILIES, load_family, written
from recorded import Engine, model_of

from corerl.contracts.agents import AgentContext, Task
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, RunError
from corerl.foreign import SharedLoop
from corerl_agents.agents.chat import ChatAgent
from corerl_agents.agents.functions import complaint, schema_of
from corerl_agents.agents.options import ChatOptions, ToolsOptions
from corerl_agents.agents.tools import ToolsAgent

TASK = Task([{"role": "user", "content": "Go."}], "42", "acme")
HERE = Path(__file__)
SERVER = f"{sys.executable} {HERE.parent / 'mcp_server.py'} stdio"


class Color(Enum):
    RED = "red"


def paint(color: Color, layers: int = 1, note: str | None = None) -> str:
    """Paint the wall.

    The rest is for readers.

    Args:
        color: of the paint,
            in words
        layers: how often

    Returns:
        text
    """
    return f"{color.name} {layers} {note}"


def table(rows: list[dict[str, int]], mode: Literal["a", "b"]) -> list[int]:
    """Add rows."""
    return [sum(row.values()) for row in rows]


def fails(text: str) -> str:
    """Raise."""
    raise KeyError(text)


def sleeps(seconds: float) -> str:
    """Block."""
    time.sleep(seconds)
    return "awake"


async def waits(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "awake"


async def ends(how: str) -> str:
    """Exit, or leak a cancellation."""
    if how == "itself":
        sys.exit(3)
    helper = asyncio.create_task(ends("itself") if how == "a task" else asyncio.sleep(9))
    if how == "a helper":
        helper.cancel()
    if how == "the tool":
        asyncio.current_task().cancel()
    await helper
    return "no"


def long(n: int) -> str:
    """Many characters."""
    return "0123456789" * n


def star(*values: int) -> int:
    """No names."""
    return 0


def bare(value) -> int:
    """No hint."""
    return 0


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return load_family(tmp_path_factory.mktemp("qwen"), "qwen2.5")


def config(**limits):
    made = TrainConfig(ModelConfig("m"))
    for key, value in {"tool_timeout": 0.4, **limits}.items():
        setattr(made.rollout.multi_turn, key, value)
    return made


def says(*args):
    return written(FAMILIES["qwen2.5"], *args)


def agent_of(qwen, options, **limits):
    return ToolsAgent(AgentContext(config(**limits), qwen), options=options)


def play(qwen, script, *names, options=None, **limits):
    """One episode of a scripted policy with functions of this file: (result, model)."""
    options = options or ToolsOptions(functions=[f"{HERE}:{name}" for name in names])
    agent = agent_of(qwen, options, **limits)
    model = model_of(qwen, Engine(qwen, script))
    try:
        with asyncio.Runner(loop_factory=SharedLoop) as runner:
            return runner.run(agent.run(TASK, model)), model
    finally:
        agent.close()


def answers(result):
    return [message["content"] for message in result.messages if message["role"] == "tool"]


def test_the_schema_comes_from_the_signature_and_the_docstring():
    assert schema_of(paint) == {
        "type": "function",
        "function": {
            "name": "paint",
            "description": "Paint the wall.",
            "parameters": {
                "type": "object",
                "properties": {
                    "color": {"enum": ["red"], "description": "of the paint, in words"},
                    "layers": {"type": "integer", "description": "how often"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["color"],
            },
        },
    }
    rows = schema_of(table)["function"]["parameters"]["properties"]["rows"]
    assert rows == {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "the argument 'color' is missing"),
        ({"color": "red", "colour": 1}, "no argument 'colour'; arguments are color, layers, note"),
        ({"color": "blue"}, "must be one of 'red', not 'blue'"),
        ({"color": "red", "layers": True}, "must be of type integer, not True"),
        ({"color": "red", "note": 1}, "of type string or of type null"),
        ({"color": "red", "layers": 2, "note": None}, None),
    ],
)
def test_wrong_arguments_are_answered(arguments, reason):
    found = complaint(schema_of(paint)["function"]["parameters"], arguments)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "needs a tool"),
        ([f"{HERE}:star"], "has no name in a call"),
        ([f"{HERE}:bare"], "needs a type hint"),
        ([f"{HERE}:paint", f"{HERE}:paint"], "two tools have the name 'paint'"),
        ([f"{HERE}:nothing"], "cannot load"),
        (["./nowhere.py:f"], "cannot load"),
        ([f"{HERE}:TASK"], "is no function"),
    ],
)
def test_tools_that_cannot_be(qwen, names, reason):
    with pytest.raises(ConfigError, match=reason):
        agent_of(qwen, ToolsOptions(functions=names))


def test_calls_are_answered_until_a_turn_has_none(qwen):
    script = [
        says("", [("paint", {"color": "red", "layers": 2}), ("table", {"rows": [{"x": 1}, {"y": 2}], "mode": "a"})]),
        says("Done."),
    ]
    result, model = play(qwen, script, "paint", "table")
    assert answers(result) == ["RED 2 None", "[1, 2]"]
    assert [message["role"] for message in result.messages] == ["assistant", "tool", "tool", "assistant"]
    assert result.metrics["agent/tool_calls"] == 2 and result.metrics["agent/tool_errors/ratio"] == (0, 2)
    assert model.nodes[1].parent is model.nodes[0] and result.prompt is None


def test_a_failure_is_the_tools_result_and_counted(qwen):
    bad = [
        ("fails", {"text": "x"}),
        ("nothing", {}),
        ("fails", {}),
        ("waits", {"seconds": 60}),
        ("sleeps", {"seconds": 12}),
    ]
    start = time.monotonic()
    result, _ = play(qwen, [says("", bad), says("Done.")], "fails", "waits", "sleeps")
    assert time.monotonic() - start < 10
    assert answers(result) == [
        "error: the tool raised KeyError: 'x'",
        "error: there is no tool 'nothing'; tools are fails, waits, sleeps",
        "error: the argument 'text' is missing",
        "error: the tool took longer than 0.4 s",
        "error: the tool took longer than 0.4 s",
    ]
    assert result.metrics["agent/tool_errors/ratio"] == (5, 5)
    assert result.metrics["agent/tool_call_seconds"] > 0.7


def test_an_async_tool_that_exits_or_leaks_a_cancellation_is_a_failure_of_the_call(qwen):
    ends = ["itself", "a task", "a helper", "the tool"]
    calls = [("ends", {"how": how}) for how in ends]
    result, _ = play(qwen, [says("", calls), says("", [("waits", {"seconds": 0})]), says("Done.")], "ends", "waits")
    assert [text.partition(":")[2].partition(":")[0] for text in answers(result)[:4]] == [
        *[" the tool raised SystemExit"] * 2,
        *[" the tool raised CancelledError"] * 2,
    ]
    assert answers(result)[4:] == ["awake"] and result.metrics["agent/tool_errors/ratio"] == (4, 5)


def test_limits_of_turns_calls_and_lengths(qwen):
    script = [says("", [("long", {"n": 100})] * 3) for _ in range(9)]
    options = ToolsOptions(functions=[f"{HERE}:long"], max_calls=2)
    result, model = play(qwen, script, options=options, max_assistant_turns=3, max_tool_response_length=20)
    assert len(model.nodes) == 3
    assert answers(result)[:2] == ["0123456789…123456789"] * 2
    assert answers(result)[2] == "error: a t…s at most"
    assert result.metrics["agent/tool_calls"] == 6


def test_a_system_message_and_the_trivial_agent(qwen):
    options = ToolsOptions(functions=[f"{HERE}:long"], system="Use tools.")
    result, _ = play(qwen, [says("4")], options=options)
    assert result.prompt == [{"role": "system", "content": "Use tools."}, *TASK.messages]
    model = model_of(qwen, Engine(qwen, [says("4")]))
    agent = ChatAgent(SimpleNamespace(config=config()), options=ChatOptions())
    result = asyncio.run(agent.run(TASK, model))
    assert [message["content"] for message in result.messages] == ["4"] and result.prompt is None


mcp = pytest.importorskip("mcp")

UP = [("count_up", {"by": 1})]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sessions", ["episode", "run"])
def test_sessions_of_a_server_over_pipes(qwen, sessions, tmp_path):
    """Own ones count from 1; one of the run counts on; all processes end with the agent."""
    pids = tmp_path / "pids"
    options = ToolsOptions(servers=[f"{SERVER} {pids}"], sessions=sessions)
    agent = agent_of(qwen, options, tool_timeout=20.0)

    async def both():
        models = [model_of(qwen, Engine(qwen, [says("", UP), says("", UP), says("Done.")])) for _ in range(2)]
        return await asyncio.gather(*(agent.run(TASK, model) for model in models))

    try:
        results = asyncio.run(both())
        started = [int(pid) for pid in pids.read_text().split()]
        if sessions == "episode":
            assert not any(map(is_alive, started))
    finally:
        agent.close()
    counts = [int(text.split()[0]) for result in results for text in answers(result)]
    if sessions == "episode":
        assert (counts, len(started)) == ([1, 2, 1, 2], 2)
    else:
        assert (sorted(counts), len(started)) == ([1, 2, 3, 4], 1)
    assert not any(map(is_alive, started))


def test_errors_deadlines_and_a_cancelled_episode_of_a_server(qwen, tmp_path):
    pids = tmp_path / "pids"
    agent = agent_of(qwen, ToolsOptions(servers=[f"{SERVER} {pids}"]), tool_timeout=8.0)
    calls = [("fail", {}), ("wait", {"seconds": 30}), ("count_up", {"by": "x"})]
    try:
        model = model_of(qwen, Engine(qwen, [says("", calls), says("Done.")]))
        result = asyncio.run(agent.run(TASK, model))
        assert answers(result)[0].startswith("error: Error executing tool fail")
        assert answers(result)[1] == "error: the tool took longer than 8 s"
        assert answers(result)[2].startswith("error: ") and result.metrics["agent/tool_errors/ratio"] == (3, 3)

        async def cancelled():
            model = model_of(qwen, Engine(qwen, [says("", [("wait", {"seconds": 30})])]))
            await asyncio.wait_for(agent.run(TASK, model), 4)

        agent._limits.tool_timeout = agent._sessions._timeout = 60.0
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(cancelled())
        assert time.monotonic() - start < 10
        assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    finally:
        agent.close()


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (f"{sys.executable} -c 'raise SystemExit(\"no server here\")'", "does not start: .*no server here"),
        ("/nowhere/server", "does not start: FileNotFoundError"),
        (f"{sys.executable} -c 'import time; time.sleep(60)'", "had not started after 2 s"),
        ("http://127.0.0.1:9/mcp", "does not start"),
    ],
)
def test_a_server_that_does_not_start_ends_the_run(qwen, server, reason):
    agent = agent_of(qwen, ToolsOptions(servers=[server], start_timeout=2.0))
    try:
        with pytest.raises(RunError, match=reason):
            asyncio.run(agent.run(TASK, model_of(qwen, Engine(qwen, []))))
    finally:
        agent.close()


def test_a_server_over_http(qwen):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(HERE.parent / "mcp_server.py"), str(port)], stderr=subprocess.PIPE)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        options = ToolsOptions(servers=[f"http://127.0.0.1:{port}/mcp"])
        result, _ = play(qwen, [says("", UP), says("Done.")], options=options, tool_timeout=20.0)
        assert re.fullmatch(r"1 of \d+", answers(result)[0])
    finally:
        process.kill()
        process.wait()


def test_without_the_sdk_the_error_names_the_package(qwen, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'corerl-agents\[mcp\]'"):
        agent_of(qwen, ToolsOptions(servers=["x"]))
