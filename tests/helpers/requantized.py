"""A claim about engines with ``quantization=fp8``: an update gives the weights that the engine's own loader gives."""

import asyncio
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams

PROMPTS = [[72, 101, 108, 108, 111], list(range(10, 60)), [200, 3, 9]]

Answers = list[tuple[list[int], list[float]]]


def answers(backend: Any) -> Answers:
    """Tokens and log-probs of greedy responses."""
    sampling = SamplingParams(max_tokens=32, temperature=0.0, ignore_eos=True)
    requests = [GenerationRequest(str(number), prompt, sampling) for number, prompt in enumerate(PROMPTS)]
    return [(list(each.token_ids), list(each.log_probs)) for [each] in asyncio.run(backend.generate(requests))]


def an_update_gives_what_the_loader_gives(backend: Any, folder: Path) -> str:
    """Send other weights, and those of the folder, which the engine has loaded."""
    stored = {name: tensor.bfloat16().cuda() for name, tensor in load_file(folder / "model.safetensors").items()}
    generator = torch.Generator("cuda").manual_seed(1)

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        return torch.randn(tensor.shape, generator=generator, device="cuda", dtype=tensor.dtype)

    others = {name: tensor + 0.1 * tensor.std() * noise(tensor) for name, tensor in stored.items() if tensor.dim() > 1}
    loaded = answers(backend)
    assert answers(backend) == loaded, "the engine does not repeat itself"
    backend.update_weights(iter((stored | others).items()), 1)
    assert answers(backend) != loaded
    backend.update_weights(iter(stored.items()), 2)
    assert answers(backend) == loaded
    return f"{len(loaded)} responses are equal to the last bit"
