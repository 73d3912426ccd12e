"""Images in observations of an environment, and of clients of the endpoint: one row, which training computes alike."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import torch

from corerl.contracts.agents import AgentContext, AgentResult, Task
from corerl.contracts.config import ModelConfig, MultiTurnConfig, RolloutConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.rows import rollouts_of
from corerl_agents.chats import make_chats
from corerl_envs import Start, Turn
from corerl_envs.agent import EnvironmentAgent
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_gateway.dialects.routes import ModelList
from corerl_gateway.endpoint import HttpEndpoint
from corerl_gateway.options import EndpointOptions
from corerl_torch.media_store import COLUMN
from engines_here import Engines, config_of, url
from pictures import picture, png, tokenizer_of

TURNS = 3


class Pictures:
    """Shows a picture in every turn, and another one first if ``begins``."""

    def __init__(self, begins: bool, image: Any = None) -> None:
        self.begins, self.image = begins, image

    def reset(self, task: Task, seed: int) -> Start:
        return Start([], self.shown(9) if self.begins else None)

    def step(self, state: list[str], response: str) -> Turn:
        state.append(response)
        return Turn(self.shown(len(state)), reward=1.0)

    def shown(self, seed: int) -> list[dict[str, Any]]:
        image = png(picture(seed)) if self.image is None else self.image
        return [{"role": "user", "content": [{"type": "text", "text": "now"}, {"type": "image", "image": image}]}]

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def folder(model_folder: Any) -> Path:
    return model_folder()


def recorder_of(folder: Path, images: list[Any]) -> Recorder:
    tokenizer = tokenizer_of(folder)
    content = "<image>" * len(images) + "red?"
    given = {COLUMN: images} if images else {}
    messages, media = tokenizer.place_media([{"role": "user", "content": content}], given, "a row")
    text = tokenizer.render(messages, "a row", add_generation_prompt=True)
    ids, columns = tokenizer.encode_media(text, media, "a row")
    prompt = Prompt(0, tuple(ids), messages, "s", "red", {}, columns)
    group = Group(prompt, 5, SamplingParams(300, ignore_eos=True), "g", "b", 0)
    services = Services(make_chats(config_of(folder), tokenizer))
    return Recorder(Engines(folder), tokenizer, group, 0, 100, services)


def played(folder: Path, environment: Any, images: list[Any]) -> tuple[Recorder, AgentResult]:
    recorder = recorder_of(folder, images)
    limits = MultiTurnConfig(max_assistant_turns=TURNS, max_turn_length=4)
    config = SimpleNamespace(rollout=RolloutConfig(multi_turn=limits), data=config_of(folder).data)
    agent = EnvironmentAgent(AgentContext(config, recorder.tokenizer, lambda key: lambda: environment))  # type: ignore[arg-type]
    prompt = recorder.group.prompt
    try:
        result = asyncio.run(agent.run(Task(prompt.messages, "red", "s", {}, prompt.token_ids), recorder))
    finally:
        agent.close()
    return recorder, result


def off(folder: Path, recorder: Recorder, result: AgentResult, images: int, tokens: int) -> float:
    """The largest difference between log-probs of engine and trainer, of an episode that is one row."""
    rollouts = rollouts_of(recorder, result)
    assert [len(each.branches) for each in rollouts.episodes or []] == [0]
    experience = rollouts.experience()
    assert experience.columns[COLUMN].values.shape == (images, 32) and experience.response_mask.sum() == tokens
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=10_000))
    found = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True)).forward(experience, ["log_probs"])
    assert found.log_probs is not None and experience.rollout_log_probs is not None
    return float(torch.where(experience.response_mask, found.log_probs - experience.rollout_log_probs, 0.0).abs().max())


@pytest.mark.parametrize(("begins", "images"), [(True, []), (False, [picture(7)]), (False, [])])
def test_an_observation_with_an_image_enters_the_history(folder: Path, begins: bool, images: list[Any]) -> None:
    recorder, result = played(folder, Pictures(begins), images)
    assert result.error is None and len(recorder.nodes) == TURNS
    shown = [part for each in result.messages if each["role"] == "user" for part in each["content"]]
    assert [part["type"] for part in shown] == ["text", "image"] * (TURNS - 1)
    assert all(part["image"].startswith("media:") for part in shown if part["type"] == "image")
    assert off(folder, recorder, result, TURNS - 1 + begins + len(images), 4 * TURNS) < 1e-5


def test_the_tokens_are_those_of_the_whole_chat(folder: Path) -> None:
    """Up to the policy's own: the template writes none of these turns otherwise."""
    recorder, result = played(folder, Pictures(True), [])
    tokenizer = tokenizer_of(folder)
    first, *_ = recorder.nodes
    messages = [*(result.prompt or []), {"role": "assistant", "content": "X"}, result.messages[1]]
    media = [
        part["image"] for each in (messages[0], messages[2]) for part in each["content"] if part["type"] == "image"
    ]
    text = tokenizer.render(messages, "a chat", add_generation_prompt=True)
    ids, _ = tokenizer.encode_media(text, {COLUMN: media}, "a chat")
    assert ids[: len(first.read)] == first.read
    behind = recorder.nodes[1].read
    assert ids[len(ids) - len(behind) :] == behind


@pytest.mark.parametrize("image", ["/etc/hostname", "http://127.0.0.1/a.png", b"no picture", None])
def test_an_observation_that_is_no_image_is_an_error(folder: Path, image: Any) -> None:
    environment = Pictures(True, image)
    environment.shown = lambda seed: [  # type: ignore[method-assign]
        {"role": "user", "content": [{"type": "image", "image": image}]}
    ]
    with pytest.raises(DataError, match=r"the environment's reset\(\)"):
        played(folder, environment, [])


def test_a_text_that_spells_the_token_of_an_image_is_text_and_counted(folder: Path) -> None:
    environment = Pictures(True)
    shown = environment.shown

    def repeated(seed: int) -> list[dict[str, Any]]:
        [message] = shown(seed)
        texts = [{"type": "text", "text": "<|image_pad|>"}] if seed != 9 else []
        return [{**message, "content": [*texts, *message["content"]]}]

    environment.shown = repeated  # type: ignore[method-assign]
    recorder, result = played(folder, environment, [])
    placeholder = tokenizer_of(folder).processor.placeholder_id
    assert result.error is None and len(recorder.nodes) > 1
    for node in recorder.nodes[1:]:
        assert list(node.read).count(placeholder) == recorder.nodes[0].read.count(placeholder)
    assert result.metrics["agent/spelled_control_tokens"] == len(recorder.nodes) - 1


def test_a_client_of_the_endpoint_sends_an_image_in_a_later_turn(folder: Path) -> None:
    recorder = recorder_of(folder, [])
    endpoint = HttpEndpoint(EndpointOptions(), ModelList("tiny", 4096), {})

    async def talk() -> None:
        address = endpoint.open(recorder)
        headers = {"Authorization": f"Bearer {address.api_key}"}
        said: list[dict[str, Any]] = [{"role": "user", "content": "red?"}]
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(60)) as session:
            for seed in (1, 2):
                body = {"model": "tiny", "messages": said, "max_tokens": 4}
                async with session.post(f"{address.base_url}/chat/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    said.append((await answer.json())["choices"][0]["message"])
                image = {"type": "image_url", "image_url": {"url": url(seed)}}
                said.append({"role": "user", "content": [{"type": "text", "text": "and this?"}, image]})
            body = {"model": "tiny", "messages": said, "max_tokens": 4}
            async with session.post(f"{address.base_url}/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
        endpoint.close()

    asyncio.run(talk())
    assert off(folder, recorder, AgentResult(), 2, 12) < 1e-5
