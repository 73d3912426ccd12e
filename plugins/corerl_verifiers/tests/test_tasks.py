"""Tasks of verifiers 0.4: real episodes of the library, against a minimal endpoint of tokens."""

import asyncio
import importlib
import os
import shutil
import sys
import textwrap
from contextlib import nullcontext
from importlib import metadata
from types import SimpleNamespace

import pytest
from token_endpoint import END, TokenModel

from corerl.contracts.agents import AgentContext, Task
from corerl.contracts.config import ModelConfig, TrainConfig
from corerl.errors import ConfigError, DataError
from corerl_verifiers.options import TaskDataOptions, TaskOptions


def version():
    try:
        return tuple(map(int, metadata.version("verifiers").split(".")[:2]))
    except metadata.PackageNotFoundError:
        return (0, 0)


needs_tasks = pytest.mark.skipif(version() != (0, 4), reason="pip install 'corerl-verifiers[tasks]' for these tests")

TASKSET = """
    import verifiers.v1 as vf

    class SumData(vf.TaskData):
        answer: str

    class SumTask(vf.Task[SumData]):
        @vf.reward(weight=1.0)
        async def right(self, trace) -> float:
            text = trace.branches[-1].messages[-1].content
            if text == "boom":
                raise ValueError("no judge")
            return float(self.data.answer in (text or ""))

        @vf.metric
        async def length(self, trace) -> float:
            return float(len(trace.branches[-1].messages[-1].content or ""))

    class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
        def load(self):
            for n in range(3):
                yield SumTask(SumData(prompt=f"{n} + {n}?", system_prompt="You add.", answer=str(2 * n)))

    __all__ = ["Sums"]
"""
HARNESS = """
    import verifiers.v1 as vf
    from openai import AsyncOpenAI

    class AgainConfig(vf.HarnessConfig):
        turns: int = 1

    class Again(vf.Harness[AgainConfig]):
        APPENDS_SYSTEM_PROMPT = True
        EXECUTES_CODE = False
        NEEDS_CONTAINER = False

        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):
            system, prompt = self.resolve_prompt(data)
            messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
            async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
                for _ in range(self.config.turns):
                    reply = await client.chat.completions.create(model=ctx.model, messages=messages)
                    messages += [{"role": "assistant", "content": reply.choices[0].message.content}]
                    messages += [{"role": "user", "content": "again"}]
            return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    __all__ = ["Again"]
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    for name, text in (("corerl_sums", TASKSET), ("corerl_again", HARNESS)):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


@pytest.fixture
def play(library, tiny_tokenizer_dir):
    from corerl_verifiers.agent import VerifiersAgent
    from corerl_verifiers.tasks import TaskData

    open_agents, models = [], []
    [*rows] = TaskData(TaskDataOptions("corerl_sums", train_size=3)).generate()["train"]

    def played(*answers, harness="corerl_again", turns=None, places=(1,), again=1, parser=None, **options):
        pins = {"id": harness} | ({"turns": turns} if turns else {})
        env = {"agent": {"harness": pins}}
        renderer = {"name": "default", "tool_parser": parser}
        given = TaskOptions({"id": "corerl_sums"}, env=env, renderer=renderer, **options)
        config = SimpleNamespace(model=SimpleNamespace(path=str(tiny_tokenizer_dir)))
        agent = VerifiersAgent(AgentContext(config, None), options=given)
        open_agents.append(agent)

        async def run():
            plays = []
            for place in list(places) * again:
                models.append(TokenModel(*answers))
                row = rows[place]
                task = Task(row.prompt, row.ground_truth, row.data_source, row.extra_info)
                plays.append(agent.run(task, models[-1]))
            return await asyncio.gather(*plays)

        return asyncio.run(asyncio.wait_for(run(), 100)), models[-len(places) * again :]

    yield played
    for agent in open_agents:
        agent.close()
    for model in models:
        model.close()


@needs_tasks
def test_an_episode_is_the_library_s_with_tokens_of_the_policy(play):
    [result], [model] = play("it is 2")
    assert result.error is None and result.reward == 1.0 and result.components == {"right": 1.0}
    assert result.metrics["verifiers/length"] == 7.0
    assert model.paths == ["/e1/inference/v1/generate"]
    prompt = "<|im_start|>system\nYou add.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    [request] = model.requests
    assert bytes(each for each in request["token_ids"] if each < 256).decode() == prompt.replace(
        "<|im_start|>", ""
    ).replace("<|im_end|>", "")
    assert request["sampling_params"]["logprobs"] == 1


@needs_tasks
def test_a_second_turn_continues_the_very_tokens_of_the_first(play):
    [result], [model] = play("caf\u00e9 ", "2", turns=2)
    assert result.reward == 1.0
    first, second = (request["token_ids"] for request in model.requests)
    written = [*first, *"caf\u00e9 ".encode(), END]
    assert second[: len(written)] == written


@needs_tasks
def test_episodes_at_once_keep_their_answers(play):
    results, models = play("0 2 4", places=(0, 1, 2), again=4, episodes_of_a_server=5)
    assert [result.reward for result in results] == [1.0] * 12
    assert all(len(model.requests) == 1 for model in models)


@needs_tasks
def test_a_reward_function_that_raises_is_an_error_of_the_episode(play):
    [result], _ = play("boom")
    assert "no judge" in result.error


@needs_tasks
@pytest.mark.parametrize("harness", ["null", "bash"])
def test_a_harness_of_the_library_plays(play, harness):
    if not shutil.which("uv") or not os.environ.get("CORERL_VERIFIERS_HARNESSES"):
        pytest.skip("the library's harnesses install packages: set CORERL_VERIFIERS_HARNESSES=1")
    [result], [model] = play("2", harness=harness, parser="qwen3")
    assert result.error is None and result.reward == 1.0 and len(model.requests) == 1


@needs_tasks
def test_a_changed_taskset_is_refused(library):
    from corerl_verifiers.tasks import TaskStore

    store = TaskStore([SimpleNamespace(key="a"), SimpleNamespace(key="b")])
    assert store.find(1, "b").key == "b"
    with pytest.raises(DataError, match="task 0 of the taskset is not that of the row"):
        store.find(0, "b")
    with pytest.raises(DataError, match="has no task 7"):
        store.find(7, "x")


@needs_tasks
def test_wrong_options_are_named(library):
    from corerl_verifiers.servers import env_config

    with pytest.raises(ConfigError, match="refuses its options"):
        env_config(TaskOptions({"id": "corerl_sums"}, env={"agent": {"harness": {"id": "nowhere"}}}))
    with pytest.raises(ConfigError, match="refuses its options"):
        env_config(TaskOptions({"id": "corerl_sums", "levle": 2}))


@pytest.mark.parametrize(("installed", "works"), [("0.3.1", False), ("0.4.0", True), ("0.4.7", True), ("0.5.0", False)])
def test_the_agent_needs_version_0_4(monkeypatch, installed, works):
    monkeypatch.setattr(metadata, "version", lambda name: installed)
    options, config = TaskOptions({"id": "x"}), TrainConfig(ModelConfig("tiny"))
    refused = pytest.raises(ConfigError, match=f"works with verifiers from 0.4.0 to before 0.5, not {installed}")
    with nullcontext() if works else refused:
        options.check("rollout.agent", config)
