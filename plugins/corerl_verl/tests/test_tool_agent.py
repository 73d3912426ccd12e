"""The agent ``verl_tools`` plays verl's tools and interactions, loaded from files as verl has them."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from corerl.contracts.agents import AgentContext, AgentResult, ChatReply, Sampled, Task
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError
from corerl_verl.options import VerlToolsOptions
from corerl_verl.tool_agent import VerlToolAgent

TOOLS = '''
from corerl_verl.tools import BaseInteraction, BaseTool, ToolResponse

class Counter(BaseTool):
    """As verl 0.6 and later: the row's values are in create_kwargs, the answer is a ToolResponse."""

    seen = []

    async def create(self, instance_id=None, **kwargs):
        self.start = kwargs["create_kwargs"].get("start", 0)
        return "an instance", ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        Counter.seen.append((instance_id, dict(parameters), len(kwargs["agent_data"].messages)))
        total = self.start + parameters["by"]
        if parameters["by"] < 0:
            raise ValueError("no way back")
        return ToolResponse(text=str(total) + self.config.get("suffix", "")), 0.5, {}

    async def release(self, instance_id, **kwargs):
        Counter.seen.append("released")

class Old:
    """As verl 0.5: named values of the row, a text, and no further arguments."""

    def __init__(self, config, tool_schema):
        self.tool_schema, self.name = tool_schema, tool_schema.function.name

    async def create(self, instance_id=None, ground_truth=None):
        self.truth = ground_truth
        return "x"

    async def execute(self, instance_id, parameters):
        return f"{self.truth} {instance_id}", 0.0, {}

    async def release(self, instance_id):
        pass

class PicturesTool(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="look", image=["http://host/a.png"]), None, {}

class PatientInteraction(BaseInteraction):
    wanted = {}

    async def start_interaction(self, instance_id=None, **kwargs):
        self.wanted[instance_id] = kwargs["want"]

    async def generate_response(self, instance_id, messages, **kwargs):
        right = messages[-1]["content"] == self.wanted[instance_id]
        return right, "well done" if right else "again", 1.0 if right else 0.25, {}

    async def finalize_interaction(self, instance_id, **kwargs):
        raise AssertionError("verl does not call it")
'''


def schema(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters}}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"acme_tools_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(TOOLS)
    yield name
    sys.modules.pop(name, None)


def tool_file(module: str, *classes: str, **config: Any) -> str:
    entries = [
        {
            "class_name": f"{module}.{each}",
            "config": {"type": "native", **config},
            "tool_schema": schema(each.lower()),
        }
        for each in classes
    ]
    Path("tools.yaml").write_text(yaml.safe_dump({"tools": entries}))
    return "tools.yaml"


class Scripted:
    """A policy that answers with the given turns: a text, or calls as (name, arguments)."""

    def __init__(self, *turns: Any) -> None:
        self.turns, self.chats, self.tools = list(turns), [], []  # type: ignore[var-annotated]

    async def chat(self, messages: Any, *, tools: Any = (), max_tokens: Any = None) -> ChatReply:
        self.chats.append([dict(each) for each in messages])
        self.tools = [each["function"]["name"] for each in tools]
        turn = self.turns.pop(0)
        calls = [] if isinstance(turn, str) else turn
        message: dict[str, Any] = {"role": "assistant", "content": turn if isinstance(turn, str) else ""}
        if calls:
            message["tool_calls"] = [
                {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for place, (name, arguments) in enumerate(calls)
            ]
        return ChatReply(message, Sampled([1], "", "length" if turn == "cut" else "stop"), 1)


def play(
    policy: Scripted, extra: dict[str, Any] | None = None, turns: int = 9, length: int = 256, **options: Any
) -> AgentResult:
    config = TrainConfig(model=ModelConfig(path="m"))
    config.rollout.multi_turn.max_assistant_turns = turns
    config.rollout.multi_turn.max_tool_response_length = length
    agent = VerlToolAgent(AgentContext(config, SimpleNamespace()), options=VerlToolsOptions(**options))  # type: ignore[arg-type]
    task = Task([{"role": "user", "content": "Go."}], "42", "acme", extra or {})
    return asyncio.run(agent.run(task, policy))  # type: ignore[arg-type]


def answers(policy: Scripted) -> list[Any]:
    return [each["content"] for each in policy.chats[-1] if each["role"] in ("tool", "user")][1:]


def test_a_tool_is_created_with_the_rows_values_called_and_released(module: str) -> None:
    policy = Scripted([("counter", '{"by": 2}')], "done")
    extra = {"tools_kwargs": {"counter": {"create_kwargs": {"start": 40}}}}
    result = play(policy, extra, tools=tool_file(module, "Counter", suffix="!"))
    assert answers(policy) == ["42!"]
    assert policy.tools == ["counter"]
    assert sys.modules[module].Counter.seen == [("an instance", {"by": 2}, 1), "released"]
    assert [each["role"] for each in result.messages] == ["assistant", "tool", "assistant"]
    assert result.metrics == {"agent/tool_calls": 1, "agent/tool_errors/ratio": (0, 1), "agent/tool_rewards": 0.5}
    assert result.reward == 0.0  # in verl, too, rewards of calls are no score


def test_a_tool_of_verl_0_5_gets_its_named_values_alone(module: str) -> None:
    policy = Scripted([("old", '{"by": 2}')], "done")
    play(
        policy,
        {"tools_kwargs": {"old": {"create_kwargs": {"ground_truth": "7", "other": 1}}}},
        tools=tool_file(module, "Old"),
    )
    assert answers(policy) == ["7 x"]


def test_only_the_first_calls_of_a_turn_are_answered(module: str) -> None:
    calls = [("counter", f'{{"by": {number}}}') for number in (1, 2, 3)]
    policy = Scripted(calls, "done")
    play(policy, tools=tool_file(module, "Counter"))
    assert answers(policy) == ["1"]
    policy = Scripted(calls, "done")
    play(policy, tools=tool_file(module, "Counter"), max_calls=2)
    assert answers(policy) == ["1", "2"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (("counter", '{"by": -1}'), "error: the tool raised ValueError: no way back"),
        (("counter", "[1]"), "error: the arguments are no JSON object"),
        (("other", "{}"), "error: there is no tool 'other'; tools are counter"),
    ],
)
def test_a_failure_of_a_call_is_its_answer(module: str, call: tuple[str, str], answer: str) -> None:
    policy = Scripted([call], "done")
    result = play(policy, tools=tool_file(module, "Counter"))
    assert answers(policy) == [answer]
    assert result.metrics["agent/tool_errors/ratio"] == (1, 1)


@pytest.mark.parametrize(("side", "text"), [("middle", "12…57"), ("left", "…4557"), ("right", "1234…")])
def test_a_long_answer_loses_the_named_side(module: str, side: Any, text: str) -> None:
    policy = Scripted([("counter", '{"by": 1234557}')], "done")
    play(policy, tools=tool_file(module, "Counter"), truncate_side=side, length=4)
    assert answers(policy) == [text]


def test_the_last_turn_gets_no_answer(module: str) -> None:
    policy = Scripted(*[[("counter", '{"by": 1}')]] * 3)
    result = play(policy, turns=2, tools=tool_file(module, "Counter"))
    assert [each["role"] for each in result.messages] == ["assistant", "tool", "assistant"]


def test_a_row_selects_its_tools(module: str) -> None:
    policy = Scripted([("old", '{"by": 1}')], "done")
    play(policy, {"tool_selection": ["counter"]}, tools=tool_file(module, "Counter", "Old"))
    assert policy.tools == ["counter"]
    assert answers(policy) == ["error: there is no tool 'old'; tools are counter"]


def test_an_answer_with_an_image_is_a_message_with_parts(module: str) -> None:
    policy = Scripted([("picturestool", '{"by": 1}')], "done")
    play(policy, tools=tool_file(module, "PicturesTool"))
    assert answers(policy) == [[{"type": "image", "image": "http://host/a.png"}, {"type": "text", "text": "look"}]]


def test_functions_of_a_file_are_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("functions.py").write_text(
        "from corerl_verl.tools import function_tool\n\n"
        "@function_tool('price')\ndef cost(item: str) -> dict:\n"
        "    '''The price.\n\n    Args:\n        item: name\n    '''\n"
        "    return {'price': len(item)}\n\n"
        "@function_tool\nasync def twice(by: int) -> str:\n    '''Twice.\n\n    Args:\n        by: number\n    '''\n"
        "    return str(2 * by), 0.25\n"
    )
    policy = Scripted([("price", '{"item": "tea"}'), ("twice", '{"by": 21}')], "done")
    result = play(policy, functions="functions.py", max_calls=2)
    assert policy.tools == ["price", "twice"]
    assert answers(policy) == ['{"price": 3}', "42"]
    assert result.metrics["agent/tool_rewards"] == 0.25


def test_a_simulated_user_answers_turns_without_a_call_and_ends_the_episode(module: str) -> None:
    entry = {"name": "patient", "class_name": f"{module}.PatientInteraction", "config": {}}
    Path("users.yaml").write_text(yaml.safe_dump({"interaction": [entry]}))
    policy = Scripted("41", "42", "43")
    result = play(policy, {"interaction_kwargs": {"name": "patient", "want": "42"}}, interactions="users.yaml")
    assert [each["content"] for each in result.messages] == ["41", "again", "42", "well done"]
    assert result.metrics["agent/turn_scores"] == 1.25
    [instance] = sys.modules[module].PatientInteraction.wanted
    assert isinstance(instance, str)  # verl passes the name of the request


def test_a_turn_that_fills_the_response_gets_no_answer(module: str) -> None:
    entry = {"class_name": f"{module}.PatientInteraction", "config": {}}
    Path("users.yaml").write_text(yaml.safe_dump({"interaction": [entry]}))
    result = play(Scripted("41", "cut"), {"interaction_kwargs": {"want": "42"}}, interactions="users.yaml")
    assert [each["content"] for each in result.messages] == ["41", "again", "cut"]


def test_what_cannot_be_loaded_is_one_sentence(module: str) -> None:
    file = tool_file(module, "Missing")
    with pytest.raises(ConfigError, match=rf"rollout.agent: {file}: cannot load {module}.Missing: {module} has no"):
        play(Scripted(), tools=file)
    (Path("tools.yaml")).write_text("tools: [{class_name: verl.tools.x.Y, config: {type: mcp}}]")
    with pytest.raises(ConfigError, match=r"is of type mcp: name the server in rollout.agent=\{name: tools, servers"):
        play(Scripted(), tools="tools.yaml")
    (Path("tools.yaml")).write_text("[]")
    with pytest.raises(ConfigError, match=r"tools\.yaml must have a list 'tools' of mappings with class_name"):
        play(Scripted(), tools="tools.yaml")
    with pytest.raises(ConfigError, match="needs a tool: name tools, functions or interactions"):
        play(Scripted())
    errors = list(VerlToolsOptions(tools="no.yaml").examine("rollout.agent", None, None))
    assert [str(error) for error in errors] == ["rollout.agent.tools: no file no.yaml"]


def test_a_class_that_needs_verl_is_refused_with_the_remedy(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl", None)  # type: ignore[arg-type]
    Path("tools.yaml").write_text("tools: [{class_name: verl.tools.gsm8k_tool.Gsm8kTool, config: {type: native}}]")
    with pytest.raises(ConfigError, match=r"install verl, or take the base class of corerl_verl\.tools"):
        play(Scripted(), tools="tools.yaml")


def test_with_verl_its_own_schema_class_is_used(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas: Any = ModuleType("verl.tools.schemas")

    class OpenAIFunctionToolSchema:
        @staticmethod
        def model_validate(values: Any) -> Any:
            function = SimpleNamespace(name=values["function"]["name"])
            return SimpleNamespace(function=function, model_dump=lambda **kwargs: values)

    schemas.OpenAIFunctionToolSchema = OpenAIFunctionToolSchema
    for name, each in (
        ("verl", ModuleType("verl")),
        ("verl.tools", ModuleType("verl.tools")),
        ("verl.tools.schemas", schemas),
    ):
        monkeypatch.setitem(sys.modules, name, each)
    policy = Scripted([("counter", '{"by": 2}')], "done")
    play(policy, tools=tool_file(module, "Counter"))
    assert answers(policy) == ["2"]
