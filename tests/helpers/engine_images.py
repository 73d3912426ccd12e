"""Prompts with images for engines in processes, and the trainer's log-probs of their responses."""

import asyncio
from pathlib import Path
from typing import Any

import torch

from corerl.contracts.config import ModelConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.rollout_backends import Completion, GenerationRequest, SamplingParams
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.media_store import COLUMN
from corerl_vision.tiny_model import TinyVision, write_tiny_model
from pictures import picture, tokenizer_of

FAMILIES = ("qwen2_5_vl", "qwen3_vl")

CHATS: list[list[tuple[str, list[Any]]]] = [
    [("<image>red?", [picture(1, 40, 70)])],
    [("<image>red?", [picture(2, 40, 70)])],
    [("no picture", [])],
    [("a <image> and a <image>", [picture(1, 40, 70), picture(3, 16, 16)])],
    [("<image>red?", [picture(1, 40, 70)]), ("now <image>?", [picture(4, 30, 20)]), ("so?", [])],
]
"""turns of users: text, and its images"""


def write_model(folder: Path, family: str, **sizes: int) -> Path:
    """A tiny model of sizes that the kernels of engines take."""
    write_tiny_model(folder, TinyVision(family, words=["red", "circle"], hidden_size=128, **sizes))
    return folder


def requests_of(folder: Path, *, n: int = 2, max_tokens: int = 6) -> list[GenerationRequest]:
    """A request for each chat."""
    tokenizer, requests = tokenizer_of(folder), []
    for number, chat in enumerate(CHATS):
        turns = [{"role": "user" if place % 2 == 0 else "assistant", "content": text} for place, (text, _) in odd(chat)]
        images = [image for _, own in chat for image in own]
        messages, media = tokenizer.place_media(turns, {COLUMN: images} if images else {}, "here")
        rendered = tokenizer.render(messages, "here", add_generation_prompt=True)
        ids, columns = tokenizer.encode_media(rendered, media, "here")
        sampling = SamplingParams(max_tokens, n=n, ignore_eos=True, seed=number)
        requests.append(GenerationRequest(f"r{number}", ids, sampling, columns))
    return requests


def odd(chat: list[tuple[str, list[Any]]]) -> list[tuple[int, tuple[str, list[Any]]]]:
    """The turns of users at even places, with an assistant's answer between them."""
    filled: list[tuple[str, list[Any]]] = []
    for turn in chat:
        filled += [turn, ("well", [])]
    return list(enumerate(filled[:-1]))


def generate(backend: Any, requests: list[GenerationRequest]) -> list[list[Completion]]:
    """The completions of each request, with the media of their tokens."""
    outputs = asyncio.run(backend.generate(requests))
    return [request.with_media(each) for request, each in zip(requests, outputs, strict=True)]


def batch_of(requests: list[GenerationRequest], outputs: list[list[Completion]]) -> Experience:
    """A row for each completion, with the engine's log-probs."""
    rows = [(request, each) for request, samples in zip(requests, outputs, strict=True) for each in samples]
    experience = collate(
        [request.prompt_ids for request, _ in rows],
        [each.token_ids for _, each in rows],
        list(range(len(rows))),
        log_probs=[each.log_probs for _, each in rows],
    )
    columns = [each.columns.get(COLUMN) for _, each in rows]
    experience.columns[COLUMN] = TokenColumn.collate(columns, experience.lengths.tolist())
    return experience


def trainer(folder: Path, device: str = "cpu", **options: Any) -> SingleDeviceStrategy:
    spec = StrategySpec(ModelConfig(str(folder), dtype="fp32"), device, MicroBatching(max_tokens=100_000))
    return SingleDeviceStrategy(spec, TorchOptions(use_remove_padding=True, **options))


def difference(strategy: Any, batch: Experience) -> float:
    """The largest difference between the trainer's log-probs and the engine's."""
    found = strategy.forward(batch, ["log_probs"]).log_probs
    assert found is not None and batch.rollout_log_probs is not None
    off = torch.where(batch.response_mask, found.cpu() - batch.rollout_log_probs, 0.0)
    return float(off.abs().max())
