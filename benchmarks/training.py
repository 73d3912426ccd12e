"""Tokens per second of the training strategy ``torch`` beside hand-written PyTorch loops: same model, rows, one run.

One update is the PPO clip loss on a mini-batch, its gradient, clipping and AdamW. The contenders take turns in
changing order, ``--repeats`` times each, and every loss and gradient norm is checked to be the same for all of them:

* ``torch``, the strategy, with the objective and the metrics that training uses;
* ``loop``, as one writes it: padded rows with an attention mask, log_softmax of all logits, AdamW;
* ``tight loop``, by hand what can be had: rows sorted by length, no mask, the output layer on response positions alone,
  fused AdamW.

All cut the rows into micro-batches of the same number. Tokens are those of prompts and responses, without padding.

    python benchmarks/training.py --shapes short long --hidden-size 64 --layers 2
"""

import argparse
import functools
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective, loss_weights
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla

OPTIM = OptimConfig(lr=1e-5)
CLIP = VanillaOptions()
GRAD_CLIP = 1.0
TOLERANCE = {"cpu": 1e-3, "cuda": 5e-2}
"""relative, between the losses and between the gradient norms of the contenders, by device"""


class Shape(NamedTuple):
    """Rows of a mini-batch and of a micro-batch, and shortest and longest prompt and response in tokens."""

    rows: int
    micro_rows: int
    prompt: tuple[int, int]
    response: tuple[int, int]


SHAPES = {"short": Shape(512, 512, (12, 12), (5, 7)), "long": Shape(64, 16, (100, 100), (16, 256))}


class Contender(Protocol):
    def update(self) -> tuple[float, float]:
        """One optimizer step on the mini-batch; its loss, and the gradient norm before clipping."""
        ...


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as folder:
        _random_model(arguments).save_pretrained(folder)
        results = [_compare(folder, name, arguments) for name in arguments.shapes]
    _print(results, arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="the quickstart's, or longer")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=320)
    parser.add_argument("--repeats", type=int, default=12, help="updates of each contender, after two that warm up")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its default")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda computes in bf16")
    return parser.parse_args()


def _random_model(arguments: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=arguments.vocab_size,
            hidden_size=arguments.hidden_size,
            intermediate_size=4 * arguments.hidden_size,
            num_hidden_layers=arguments.layers,
            num_attention_heads=arguments.heads,
            num_key_value_heads=arguments.heads,
            tie_word_embeddings=True,
            initializer_range=0.05,
        )
    )


def _mini_batch(shape: Shape, vocab_size: int) -> Experience:
    """Random tokens and advantages; the old policy is near the uniform distribution, some ratios get clipped."""
    generator = torch.Generator().manual_seed(0)

    def rows(shortest: int, longest: int) -> list[list[int]]:
        lengths = torch.randint(shortest, longest + 1, (shape.rows,), generator=generator).tolist()
        return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]

    batch = collate(rows(*shape.prompt), rows(*shape.response), list(range(shape.rows)))
    mask = batch.response_mask
    noise = 0.3 * torch.randn(mask.shape, generator=generator)
    batch.old_log_probs = (noise - torch.tensor(float(vocab_size)).log()) * mask
    batch.advantages = torch.randn(shape.rows, 1, generator=generator) * mask
    batch.loss_weights = loss_weights(mask, "token-mean")
    return batch


class Strategy:
    """The strategy ``torch``."""

    def __init__(self, folder: str, batch: Experience, shape: Shape, device: str) -> None:
        self._batch = batch
        self._objective = PolicyObjective(functools.partial(vanilla, options=CLIP))
        micro_batching = MicroBatching(max_sequences=shape.micro_rows)
        self._strategy = SingleDeviceStrategy(
            StrategySpec(ModelConfig(path=folder), device, micro_batching, OPTIM, total_steps=1000, grad_clip=GRAD_CLIP)
        )

    def update(self) -> tuple[float, float]:
        metrics = self._strategy.update(self._batch, self._objective)
        return metrics["pg_loss"].value, metrics["grad_norm"].value


class Rows(NamedTuple):
    """Rows of tokens, (b, S) each; the response's values stand at its tokens."""

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    old_log_probs: Tensor
    advantages: Tensor

    @classmethod
    def of(cls, batch: Experience) -> "Rows":
        columns = torch.arange(batch.input_ids.shape[1])
        attention_mask = columns < batch.lengths[:, None]
        response_mask = attention_mask & (columns >= batch.prompt_lengths[:, None])

        def spread(values: Tensor | None) -> Tensor:
            assert values is not None
            return torch.zeros(response_mask.shape).masked_scatter(response_mask, values[batch.response_mask])

        old_log_probs, advantages = spread(batch.old_log_probs), spread(batch.advantages)
        return cls(batch.input_ids, attention_mask, response_mask, old_log_probs, advantages)

    def pick(self, rows: Tensor, device: str) -> "Rows":
        """Some rows, trimmed to the longest of them."""
        width = int(self.attention_mask[rows].sum(dim=1).max())
        return Rows(*(tensor[rows, :width].to(device, non_blocking=True) for tensor in self))


class Loop:
    """The hand-written loop: everything padded, an attention mask, log_softmax of all logits."""

    fused = False

    def __init__(self, folder: str, batch: Experience, shape: Shape, device: str) -> None:
        self.model = cast(Any, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).to(device).train()
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [each for each in parameters if each.dim() >= 2], "weight_decay": OPTIM.weight_decay},
                {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
            ],
            lr=OPTIM.lr,
            betas=(OPTIM.betas[0], OPTIM.betas[1]),
            eps=OPTIM.eps,
            fused=self.fused,
        )
        self.rows, self.micro_rows, self.device = Rows.of(batch), shape.micro_rows, device

    def update(self) -> tuple[float, float]:
        loss = torch.zeros((), device=self.device)
        tokens = self.rows.response_mask.sum().item()
        for rows in torch.split(self.order(), self.micro_rows):
            micro_batch = self.rows.pick(rows, self.device)
            with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
                share = self.surrogate(micro_batch).sum() / tokens
            share.backward()  # type: ignore[no-untyped-call]
            loss += share.detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), GRAD_CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), norm.item()

    def order(self) -> Tensor:
        return torch.arange(len(self.rows.input_ids))

    def surrogate(self, batch: Rows) -> Tensor:
        logits = self.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1].float()
        log_probs = torch.log_softmax(logits, dim=-1).gather(2, batch.input_ids[:, 1:, None]).squeeze(2)
        terms = _clipped(log_probs, batch.old_log_probs[:, 1:], batch.advantages[:, 1:])
        return terms * batch.response_mask[:, 1:]


class TightLoop(Loop):
    """Sorted rows, no mask, logits of response positions alone, fused AdamW."""

    fused = True

    def order(self) -> Tensor:
        return self.rows.attention_mask.sum(dim=1).argsort(descending=True, stable=True)

    def surrogate(self, batch: Rows) -> Tensor:
        mask = batch.response_mask[:, 1:]
        hidden = self.model.model(input_ids=batch.input_ids[:, :-1], use_cache=False).last_hidden_state
        logits = self.model.lm_head(hidden[mask]).float()
        log_probs = -functional.cross_entropy(logits, batch.input_ids[:, 1:][mask], reduction="none")
        return _clipped(log_probs, batch.old_log_probs[:, 1:][mask], batch.advantages[:, 1:][mask])


def _clipped(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1 - CLIP.clip_ratio_low, 1 + CLIP.clip_ratio_high)
    surrogate = torch.maximum(-advantages * ratio, -advantages * clipped)
    return torch.where(advantages < 0, torch.minimum(surrogate, -advantages * CLIP.clip_ratio_c), surrogate)


CONTENDERS: dict[str, Callable[[str, Experience, Shape, str], Contender]] = {
    "torch": Strategy,
    "loop": Loop,
    "tight loop": TightLoop,
}


def _compare(folder: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of each, the median of its updates.

    Raises:
        SystemExit: the losses or the gradient norms of the contenders are not the same.
    """
    shape = SHAPES[name]
    batch = _mini_batch(shape, arguments.vocab_size)
    tokens = int(batch.lengths.sum())
    contenders = {side: build(folder, batch, shape, arguments.device) for side, build in CONTENDERS.items()}
    seconds: dict[str, list[float]] = {side: [] for side in contenders}
    orders = list(itertools.permutations(contenders))
    furthest = 0.0
    for repeat in range(-2, arguments.repeats):
        outcomes = []
        for side in orders[repeat % len(orders)]:
            started = time.perf_counter()
            outcomes.append(torch.tensor(contenders[side].update()))
            if repeat >= 0:
                seconds[side].append(time.perf_counter() - started)
        furthest = max(furthest, *(float((outcome / outcomes[0] - 1).abs().max()) for outcome in outcomes))
    if furthest > TOLERANCE[arguments.device]:
        raise SystemExit(f"shape {name}: losses or gradient norms differ by {furthest:.1e} of their size")
    rates = {side: tokens / statistics.median(times) for side, times in seconds.items()}
    ratios = {side: rates["torch"] / rates[side] for side in rates if side != "torch"}
    return {"shape": name, "tokens": tokens, "rates": rates, "ratios": ratios, "furthest": furthest, "seconds": seconds}


def _print(results: list[dict[str, Any]], arguments: argparse.Namespace) -> None:
    size = f"hidden {arguments.hidden_size}, {arguments.layers} layers, vocabulary {arguments.vocab_size}"
    rates = [f"{side}, tokens/s" for side in CONTENDERS]
    ratios = [f"torch / {side}" for side in CONTENDERS if side != "torch"]
    table = Table("rows", *rates, *ratios, "largest difference", title=size)
    for each in results:
        shape = SHAPES[each["shape"]]
        table.add_row(
            f"{each['shape']}: {shape.rows} of {shape.prompt[1]} + {shape.response[0]}-{shape.response[1]}",
            *(f"{rate:,.0f}" for rate in each["rates"].values()),
            *(f"{ratio:.2f}" for ratio in each["ratios"].values()),
            f"{each['furthest']:.0e}",
        )
    Console().print(table)
    print(json.dumps({**vars(arguments), "threads": torch.get_num_threads(), "results": results}))


if __name__ == "__main__":
    main()
