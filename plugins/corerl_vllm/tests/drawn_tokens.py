"""Run by an interpreter that finds triton: tokens and log-probs of ``inverse_transform`` beside float64.

    TRITON_INTERPRET=1 python plugins/corerl_vllm/tests/drawn_tokens.py      # without a GPU, in triton's interpreter

``rows``: logits in two dtypes, of one block of the vocabulary and of many, at several temperatures. The reference draws
the same numbers by its own Philox (Salmon et al. 2011, Parallel Random Numbers: As Easy as 1, 2, 3) and searches
float64 sums. ``frequencies``: seeds and positions follow one another, as those of a group of responses; chi-square of
the tokens, of which one has no mass, and the number of tokens with that mass. ``nan``: the tokens of a row of NaN.
Prints a line of JSON for each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src" / "corerl_vllm_engine"))  # without its package, as vLLM lacks

import inverse_transform

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "cpu": ((torch.bfloat16, 9000), (torch.float32, 20_000), (torch.float32, 7)),
    "cuda": ((torch.bfloat16, 50_000), (torch.float32, 151_936), (torch.float32, 7)),
}
COUNT = {"cpu": 40, "cuda": 300}
DRAWN = {"cpu": 800, "cuda": 1_000_000}


def philox(key: int, counter: int) -> list[int]:
    """Four words of 32 bits, by ten rounds of Philox-4x32."""
    mask = 0xFFFFFFFF
    words = [counter & mask, counter >> 32 & mask, 0, 0]
    keys = [key & mask, key >> 32 & mask]
    for _ in range(10):
        left, right = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [right >> 32 ^ words[1] ^ keys[0], right & mask, left >> 32 ^ words[3] ^ keys[1], left & mask]
        keys = [keys[0] + 0x9E3779B9 & mask, keys[1] + 0xBB67AE85 & mask]
    return words


def drawn(masses: Any, seed: int, place: int) -> int:
    """The token of a row, in float64: a block by the first two words, a token by the others."""
    size, words = inverse_transform.BLOCK, philox(seed % 2**64, place)
    numbers = [((high << 32 | low) >> 11) * 2.0**-53 for high, low in (words[:2], words[2:])]
    starts = range(0, len(masses), size)
    blocks = np.array([masses[start : start + size].sum() for start in starts]).cumsum()
    block = int((blocks <= numbers[0] * blocks[-1]).sum())
    within = masses[block * size : (block + 1) * size].cumsum()
    return block * size + int((within <= numbers[1] * within[-1]).sum())


def rows(dtype: torch.dtype, vocabulary: int) -> dict[str, Any]:
    count, requests = COUNT[DEVICE], COUNT[DEVICE] + 10
    logits = (5 * torch.randn(count, vocabulary, device=DEVICE)).to(dtype)
    logits[3, : vocabulary // 2] = -torch.inf
    positions = torch.arange(count, device=DEVICE) * 3
    of_row = torch.randperm(requests, device=DEVICE)[:count].int()
    temperature = torch.tensor([0.0, 0.7, 1.0, 1.3], device=DEVICE)[torch.arange(requests, device=DEVICE) % 4]
    seeds = torch.randint(-(2**62), 2**62, (requests,), device=DEVICE)
    lengths, prefilled = torch.arange(count, device=DEVICE).int(), torch.full((requests,), 9, device=DEVICE).int()
    tokens, values, counts = inverse_transform.sample(logits, of_row, temperature, seeds, positions, lengths, prefilled)
    degree = temperature[of_row.long()].double()[:, None]
    exact = (logits.double() / degree.where(degree > 0, 1.0)).log_softmax(dim=-1)
    same = 0
    for row, place in enumerate(of_row.tolist()):
        if temperature[place] == 0:
            token = int(logits[row].float().argmax())
        else:
            token = drawn(exact[row].exp().cpu().numpy(), int(seeds[place]), int(positions[row]))
        same += token == int(tokens[row, 0])
    return {
        "same": same,
        "rows": count,
        "difference": float((values - exact.gather(-1, tokens)).abs().max()),
        "counts": counts.tolist() == [int(length >= 9) for length in range(count)],
    }


def frequencies() -> dict[str, Any]:
    count, vocabulary = DRAWN[DEVICE], 40
    inverse_transform.BLOCK = 16
    logits = torch.linspace(-3.0, 1.0, vocabulary, device=DEVICE)
    logits[20] = -torch.inf
    expected = logits.double().softmax(dim=-1).cpu().numpy() * count
    seeds, positions = torch.arange(8, device=DEVICE), torch.arange(count, device=DEVICE) // 8
    of_row = (torch.arange(count, device=DEVICE) % 8).int()
    ones, lengths = torch.ones(8, device=DEVICE), torch.ones(count, device=DEVICE).int()
    tokens, _, _ = inverse_transform.sample(
        logits.expand(count, vocabulary), of_row, ones, seeds, positions, lengths, ones.int()
    )
    found = np.bincount(tokens[:, 0].cpu().numpy(), minlength=vocabulary)
    possible = expected > 0
    chi = float(((found - expected)[possible] ** 2 / expected[possible]).sum())
    return {"chi-square": chi, "degrees": int(possible.sum()) - 1, "without mass": int(found[~possible].sum())}


def without_numbers() -> list[int]:
    """Tokens of logits that are NaN, or all -inf."""
    logits = torch.full((4, 100), torch.nan, device=DEVICE)
    logits[2:] = -torch.inf
    each, temperature = torch.arange(4, device=DEVICE), torch.tensor([0.0, 1.0, 0.0, 1.0], device=DEVICE)
    ones = torch.ones(4, device=DEVICE).int()
    tokens, _, _ = inverse_transform.sample(logits, each.int(), temperature, each, each, ones, ones)
    return [int(token) for token in tokens]


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({"rows": [rows(*shape) for shape in SHAPES[DEVICE]]}), flush=True)
    print(json.dumps({"frequencies": frequencies()}), flush=True)
    print(json.dumps({"nan": without_numbers()}), flush=True)
