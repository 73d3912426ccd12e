"""Images in any turn of an agent: tokens continue, rows have the images, and training sees what the engine saw."""

import asyncio
from typing import Any

import pytest
import torch

from corerl.contracts.agents import AgentResult
from corerl.contracts.config import ModelConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.data.prompts import Prompt
from corerl.errors import DataError
from corerl.rollout.groups import Group
from corerl.rollout.recorder import Recorder, Services
from corerl.rollout.rows import rollouts_of
from corerl_agents.chats import make_chats
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.media import images_of
from corerl_torch.media_store import COLUMN
from engines_here import Engines, config_of, url
from pictures import picture, tokenizer_of


def shown(seed: int, role: str = "user") -> dict[str, Any]:
    return {
        "role": role,
        "content": [{"type": "image_url", "image_url": {"url": url(seed)}}, {"type": "text", "text": "?"}],
    }


@pytest.fixture(scope="module")
def folder(model_folder: Any) -> Any:
    return model_folder()


@pytest.fixture
def recorder(folder: Any) -> Recorder:
    tokenizer = tokenizer_of(folder)
    messages, media = tokenizer.place_media(
        [{"role": "user", "content": "<image>red?"}], {COLUMN: [picture(1)]}, "a row"
    )
    ids, columns = tokenizer.encode_media(
        tokenizer.render(messages, "a row", add_generation_prompt=True), media, "a row"
    )
    prompt = Prompt(0, tuple(ids), messages, "s", "red", {}, columns)
    group = Group(prompt, 5, SamplingParams(300, ignore_eos=True), "g", "b", 0)
    services = Services(make_chats(config_of(folder), tokenizer))
    return Recorder(Engines(folder), tokenizer, group, 0, 100, services)


def chats(recorder: Recorder, *turns: list[dict[str, Any]]) -> list[Any]:
    """A conversation that begins with the row's messages; ``turns``: the messages behind each answer."""

    async def run() -> list[Any]:
        messages, replies = list(recorder.group.prompt.messages), []
        for further in [*turns, []]:
            replies.append(await recorder.chat(messages, max_tokens=5))
            messages = [*messages, dict(replies[-1].message), *further]
        return replies

    return asyncio.run(run())


def test_a_conversation_with_images_in_its_turns_is_one_row_that_training_computes_alike(
    recorder: Recorder, folder: Any
) -> None:
    chats(recorder, [shown(2)], [{"role": "user", "content": "text"}], [shown(3, "tool")])
    rollouts = rollouts_of(recorder, AgentResult())
    assert [len(each) for each in (rollouts.episodes or [])[0].branches] == []
    experience = rollouts.experience()
    column = experience.columns[COLUMN]
    assert column.values.shape == (3, 32) and len({bytes(each) for each in column.values.numpy()}) == 3
    requests = recorder._queue.requests  # type: ignore[attr-defined]
    assert [len(images_of(request.media.get(COLUMN))) for request in requests] == [1, 2, 2, 3]
    spec = StrategySpec(ModelConfig(path=str(folder)), "cpu", MicroBatching(max_tokens=10_000))
    found = SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True)).forward(experience, ["log_probs"])
    assert found.log_probs is not None and experience.rollout_log_probs is not None
    off = torch.where(experience.response_mask, found.log_probs - experience.rollout_log_probs, 0.0)
    assert experience.response_mask.sum() == 20 and off.abs().max() < 1e-5


def test_the_same_tokens_with_another_image_are_another_conversation(recorder: Recorder) -> None:
    async def run() -> None:
        first = await recorder.chat([shown(1)], max_tokens=3)
        for seed in (1, 2):
            again = [shown(seed), dict(first.message), {"role": "user", "content": "?"}]
            await recorder.chat(again, max_tokens=3)

    asyncio.run(run())
    assert [None if node.parent is None else node.parent.number for node in recorder.nodes] == [None, 0, None]


def test_tokens_without_media_have_those_of_what_they_continue(recorder: Recorder) -> None:
    async def run() -> None:
        ids = list(recorder.group.prompt.token_ids)
        sampled = await recorder.generate(ids, max_tokens=3)
        await recorder.generate([*ids, *sampled.token_ids, 5, 6], max_tokens=3)
        await recorder.generate([5, 6], max_tokens=3)

    asyncio.run(run())
    assert [len(images_of(node.media.get(COLUMN))) for node in recorder.nodes] == [1, 1, 0]


def test_an_image_of_a_client_is_no_file_and_no_address(recorder: Recorder) -> None:
    for value in ("/etc/hostname", "conftest.py", "http://127.0.0.1/a.png"):
        message = {"role": "user", "content": [{"type": "image", "image": value}]}
        with pytest.raises(DataError, match=r"^a chat, column 'images', image 0: .*(names a file|is a URL)"):
            asyncio.run(recorder.chat([message]))
    message = {"role": "user", "content": [{"type": "image", "image": "media:../../etc"}]}
    with pytest.raises(DataError, match="refers to no processed image"):
        asyncio.run(recorder.chat([message]))
