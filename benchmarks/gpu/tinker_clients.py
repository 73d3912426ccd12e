"""Clients of Tinker's API on one GPU: seconds of each request, and whether clients in turn get what each gets alone.

    python benchmarks/gpu/tinker_clients.py --model /tmp/material/qwen2.5-1.5b --rank 32
    python benchmarks/gpu/tinker_clients.py --model /tmp/material/qwen2.5-1.5b --backend vllm --python /tmp/vllm/python

Two clients train on random tokens, each alone (twice) and in turn. Prints a table of the mean seconds of a
forward_backward, an optimizer step, the change between clients, and the merge of all weights for an engine; and the
largest difference of losses, gradient norms and weights. With ``--backend``, one engine samples for both clients in
turn, from the adapters of each (``--rank 0``: all weights): seconds of a change between them, and whether each gets
the samples that it gets alone. Ends with exit code 1 if clients in turn differ although two runs of a client alone
agree bit for bit. ``--device cpu`` with a small model is a trial. About 30 s on an H100, and the start of the engine.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, OptimConfig, RolloutConfig
from corerl.contracts.rollout_backends import GenerationRequest, SamplingParams
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.plugins import load_plugins
from corerl_tinker.training.data import Datum, LossRequest
from corerl_tinker.training.states import Adapter
from corerl_tinker.training.trainer import Trainer
from corerl_torch.stepping import AdamStep

STEP = AdamStep(1e-4, (0.9, 0.95), 1e-12, max_norm=1.0)
Seen = tuple[list[float], list[Tensor]]


class Timer:
    """Seconds of calls, by name."""

    def __init__(self, device: str) -> None:
        self._device, self.seconds = device, dict[str, list[float]]()

    def begin(self) -> float:
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def end(self, name: str, start: float) -> None:
        self.seconds.setdefault(name, []).append(self.begin() - start)


def request(draw: np.random.Generator, vocabulary: int, rows: int, tokens: int) -> LossRequest:
    """Random sequences with random weights."""
    data = []
    for _ in range(rows):
        ids = draw.integers(0, vocabulary, tokens)
        weights = (draw.normal(size=(tokens, 1)) / (rows * tokens)).astype(np.float32)
        data.append(Datum(ids, draw.integers(0, vocabulary, (tokens, 1)), {"weights": weights}, True))
    return LossRequest("cross_entropy", {}, data, backward=True)


def play(trainer: Trainer, number: int, args: argparse.Namespace, timer: Timer) -> Iterator[Seen | None]:
    """The requests of a client, one at each turn; at last its numbers and weights."""
    draw = np.random.default_rng(number)
    vocabulary = trainer.strategy.model.config.get_text_config().vocab_size
    state = trainer.new_state(Adapter(max(1, args.rank // (1 + number)), 32.0, seed=number))
    seen: list[float] = []
    for _ in range(args.steps):
        start = timer.begin()
        trainer.slot.hold(state)
        timer.end("change of client", start)
        start = timer.begin()
        seen.append(trainer.forward_backward(state, request(draw, vocabulary, args.rows, args.tokens)).loss)
        timer.end("forward_backward", start)
        yield None
        trainer.slot.hold(state)
        start = timer.begin()
        seen.append(trainer.optim_step(state, STEP))
        timer.end("optim_step", start)
        yield None
    trainer.hold(state)
    start = timer.begin()
    for _ in trainer.weights():
        pass
    timer.end("weights for an engine", start)
    yield seen, [each.cpu() for each in trainer.snapshot(state).weights]


def finished(*clients: Iterator[Seen | None]) -> list[Seen]:
    """Play clients in turn; what each has seen."""
    found: dict[int, Seen] = {}
    while len(found) < len(clients):
        for number, client in enumerate(clients):
            if number not in found and (seen := next(client)) is not None:
                found[number] = seen
    return [found[number] for number in range(len(clients))]


def difference(one: Seen, other: Seen) -> float:
    """The largest, of numbers and weights."""
    numbers = max(abs(a - b) for a, b in zip(one[0], other[0], strict=True))
    weights = max(float((a - b).abs().max()) for a, b in zip(one[1], other[1], strict=True))
    return max(numbers, weights)


Samples = list[tuple[list[int], list[float]]]


class Engine:
    """One engine for several clients."""

    def __init__(self, trainer: Trainer, model: ModelConfig, args: argparse.Namespace, timer: Timer) -> None:
        options: dict[str, Any] = {"python": args.python} if args.python else {}
        if args.backend != "hf" and args.device == "cuda":
            options |= {"gpu_memory_utilization": 0.4, "max_model_len": 2048}
        selected = load_plugins().registries.rollout_backends.select({"name": args.backend, **options})
        way: Any = "adapter" if args.rank else None
        self.backend = selected.load()(model, RolloutConfig(name=args.backend, lora=way), device=args.device)
        self._trainer, self._timer, self._version, self._number = trainer, timer, 0, args.samples
        if hasattr(self.backend, "started"):
            self.backend.started()

    def sample(self, state: Any) -> Samples:
        """Of a client, whose weights the engine gets first."""
        self._trainer.hold(state)
        start = self._timer.begin()
        self._version += 1
        self.backend.update_weights(self._trainer.weights(), self._version)
        self._timer.end("engine changes client", start)
        sampling = [SamplingParams(32, 4, seed=number, ignore_eos=True) for number in range(self._number)]
        requests = [GenerationRequest(f"r{number}", [5, 6, 7 + number], each) for number, each in enumerate(sampling)]
        start = self._timer.begin()
        answers = asyncio.run(self.backend.generate(requests))
        self._timer.end("samples", start)
        return [(list(each.token_ids), list(each.log_probs)) for answer in answers for each in answer]


def sampled(trainer: Trainer, model: ModelConfig, args: argparse.Namespace, timer: Timer) -> int:
    """Print whether clients in turn get what each gets alone; returns 1 if not."""
    vocabulary, states = trainer.strategy.model.config.get_text_config().vocab_size, []
    for number in range(2):
        state = trainer.new_state(Adapter(max(1, args.rank // (1 + number)), 32.0, seed=number))
        trainer.forward_backward(state, request(np.random.default_rng(number), vocabulary, args.rows, args.tokens))
        trainer.optim_step(state, STEP)
        states.append(state)
    engine = Engine(trainer, model, args, timer)
    try:
        alone = [[engine.sample(state) for _ in range(3)] for state in states]
        turns = [[engine.sample(state) for state in states] for _ in range(3)]
    finally:
        engine.backend.close()
    repeats = all(each == own[1] for own in alone for each in own[1:])
    same = all(turn[number] == alone[number][1] for turn in turns for number in range(2))
    print(f"{'samples alone, twice':<24}{'equal' if repeats else 'different':>10}")
    print(f"{'samples alone, in turn':<24}{'equal' if same else 'different':>10}")
    print(f"{'samples of two clients':<24}{'equal' if alone[0][1] == alone[1][1] else 'different':>10}")
    return int(repeats and not same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--strategy", default="torch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rank", type=int, default=32, help="0: all weights")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backend", choices=["vllm", "hf"], help="an engine that samples for both clients")
    parser.add_argument("--python", help="interpreter of the engine's environment")
    parser.add_argument("--samples", type=int, default=16, help="prompts, with 4 samples each")
    args = parser.parse_args()
    weights: Any = "auto" if any(Path(args.model).glob("*.safetensors")) else "dummy"
    model = ModelConfig(path=args.model, load_format=weights, lora_rank=args.rank, lora_alpha=32)
    spec = StrategySpec(model, args.device, MicroBatching(max_tokens=16384), OptimConfig())
    selected = load_plugins().registries.training_strategies.select(args.strategy, "--strategy")
    made, sends = selected.load()(spec), bool(args.backend and args.rank)
    trainer = Trainer(made, spec, args.strategy, sends_adapters=sends)
    warm, timer = Timer(args.device), Timer(args.device)
    alone = [finished(play(trainer, number, args, warm))[0] for number in range(2)]
    again = [finished(play(trainer, number, args, warm))[0] for number in range(2)]
    together = finished(*(play(trainer, number, args, timer) for number in range(2)))
    wrong = sampled(trainer, model, args, timer) if args.backend else 0
    for name, seconds in timer.seconds.items():
        print(f"{name:<24}{1e3 * sum(seconds) / len(seconds):>10.1f} ms")
    repeated, shared = (max(map(difference, alone, other)) for other in (again, together))
    print(f"{'alone, twice':<24}{repeated:>10.3g} largest difference")
    print(f"{'alone and in turn':<24}{shared:>10.3g} largest difference")
    if args.device == "cuda":
        print(f"{'peak memory':<24}{torch.cuda.max_memory_allocated() / 2**30:>10.2f} GiB")
    raise SystemExit(bool(wrong) or (shared > 0 and repeated == 0))


if __name__ == "__main__":
    main()
