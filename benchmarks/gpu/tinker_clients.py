"""Clients of Tinker's API on one GPU: seconds of each request, and whether clients in turn get what each gets alone.

    python benchmarks/gpu/tinker_clients.py --model /tmp/material/qwen2.5-1.5b --rank 32
    python benchmarks/gpu/tinker_clients.py --model /tmp/material/qwen2.5-1.5b --backend vllm --python /tmp/vllm/python

Two clients train on random tokens, each alone (twice) and in turn. Prints a table of the mean seconds of a
forward_backward, an optimizer step, the change between clients, and the merge of all weights for an engine; and the
largest difference of losses, gradient norms and weights. With ``--backend``, one engine holds the adapters of
``--clients`` clients at once (``--rank 0``: all weights of one in turn), and samples for all in one call: seconds of a
client's weights to the engine, of samples of one client and of all; the share of samples with the tokens that a client
gets alone; and the engine's log-probs beside the trainer's with the weights of the client, and of another. Ends with
exit code 1 if clients in turn differ although two runs of a client alone agree bit for bit, or if the engine's
log-probs are not those of the client's own weights. ``--device cpu`` with a small model is a trial. About 30 s on an
H100 by estimate, and 80 s with vLLM, whose start is half of it.
"""

import argparse
import asyncio
import dataclasses
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

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
    vocabulary = trainer.weights_of_rank.config.get_text_config().vocab_size
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
    """One engine that holds the adapters of several clients, or, with all weights, those of one at a time."""

    def __init__(self, model: ModelConfig, args: argparse.Namespace, timer: Timer) -> None:
        options: dict[str, Any] = {"python": args.python} if args.python else {}
        if args.backend != "hf" and args.device == "cuda":
            options |= {"gpu_memory_utilization": 0.4, "max_model_len": 2048, "enforce_eager": not args.graphs}
        selected = load_plugins().registries.rollout_backends.select({"name": args.backend, **options})
        way: Any = "adapter" if args.rank else None
        self.held = args.clients if args.rank else 1
        rollout = RolloutConfig(name=args.backend, lora=way, adapters=self.held)
        self.backend = selected.load()(model, rollout, device=args.device)
        self._timer, self._args, self._versions = timer, args, itertools.count(1)

    def started(self) -> None:
        if hasattr(self.backend, "started"):
            self.backend.started()

    def send(self, trainer: Trainer, state: Any, number: int) -> None:
        """A client's weights, which replace the adapter of this number."""
        trainer.hold(state)
        version = next(each for each in self._versions if each % self.held == number)
        start = self._timer.begin()
        self.backend.update_weights(trainer.weights(), version)
        self._timer.end("weights to the engine", start)

    def sample(self, *numbers: int, name: str = "") -> list[Samples]:
        """Those of each adapter, in one call; every client asks for the same prompts with seeds of its own."""
        args, requests = self._args, []
        for number in numbers:
            for seed in range(args.samples):
                sampling = SamplingParams(args.new_tokens, 4, seed=1000 * number + seed, ignore_eos=True)
                asked = f"{number}-{seed}", [*range(5, 69), 100 + seed], sampling
                requests.append(GenerationRequest(*asked, adapter=number % self.held))
        start = self._timer.begin()
        answers = asyncio.run(self.backend.generate(requests))
        if name:
            self._timer.end(name, start)
        found = [[(list(each.token_ids), list(each.log_probs)) for each in answer] for answer in answers]
        parts = [found[start : start + args.samples] for start in range(0, len(found), args.samples)]
        return [[sample for samples in part for sample in samples] for part in parts]


def scored(trainer: Trainer, state: Any, samples: Samples) -> list[float]:
    """The differences of the engine's log-probs from the trainer's, with a client's weights."""
    differences: list[float] = []
    data = []
    for number, (tokens, _) in enumerate(samples):
        whole = np.asarray([*range(5, 69), 100 + number // 4, *tokens])
        zeros = np.zeros((len(whole) - 1, 1), np.float32)
        data.append(Datum(whole[:-1], whole[1:, None], {"weights": zeros}, True))
    result = trainer.forward_backward(state, LossRequest("cross_entropy", {}, data, backward=False))
    for (tokens, log_probs), found in zip(samples, result.log_probs, strict=True):
        differences += np.abs(found[-len(tokens) :] - np.asarray(log_probs)).tolist()
    return differences


def sampled(trainer: Trainer, engine: Engine, args: argparse.Namespace) -> int:
    """Print whether clients at once get what each gets alone; returns 1 if not."""
    vocabulary, states = trainer.weights_of_rank.config.get_text_config().vocab_size, []
    for number in range(args.clients):
        state = trainer.new_state(Adapter(max(1, args.rank // (1 + number)), 32.0, seed=number))
        trainer.forward_backward(state, request(np.random.default_rng(number), vocabulary, args.rows, args.tokens))
        trainer.optim_step(state, dataclasses.replace(STEP, lr=3e-3 if args.rank else 1e-4))
        states.append(state)
    everyone = range(args.clients)
    if args.rank:
        for each in everyone:
            engine.send(trainer, states[each], each)
        engine.sample(*everyone)  # the engine warms up
        alone = [engine.sample(each, name="samples of one client")[0] for each in everyone]
        again = [engine.sample(each)[0] for each in everyone]
        together = engine.sample(*everyone, name="samples of all at once")
        engine.send(trainer, states[0], 1)  # client 1 is replaced, and comes back
        engine.send(trainer, states[1], 1)
        replaced = engine.sample(*everyone)
    else:
        alone, again, together, replaced = [], [], [], []
        for found in (alone, again, together):
            for each in everyone:
                engine.send(trainer, states[each], 0)
                found += engine.sample(each, name="samples of one client")
        replaced = together
    own, others = [], []
    for each in everyone:
        own += scored(trainer, states[each], together[each])
        others += scored(trainer, states[each - 1], together[each])
    for name, found in (("alone, again", again), ("all at once", together), ("one replaced", replaced)):
        pairs = [pair for a, b in zip(alone, found, strict=True) for pair in zip(a, b, strict=True)]
        same = sum(a == b for (a, _), (b, _) in pairs)
        bits = all(a == b for a, b in pairs)
        print(f"{'samples ' + name:<24}{100 * same / len(pairs):>10.1f} % with equal tokens, equal bits: {bits}")
    for name, values in (("own weights", own), ("of another client", others)):
        mean, most = np.mean(values), np.max(values)
        print(f"{'log-probs, ' + name:<28}{mean:>10.3g} mean, {most:.3g} largest difference from the trainer's")
    right = np.mean(own) < args.tolerance and np.mean(others) > 3 * np.mean(own)
    return int(not right or (args.device == "cpu" and args.backend == "hf" and together != alone))


def with_weights(folder: str, device: str) -> str:
    """The folder, or a copy of it with random weights if it has none: an engine reads the base of adapters."""
    if any(Path(folder).glob("*.safetensors")):
        return folder
    copy = shutil.copytree(folder, Path(tempfile.mkdtemp(prefix="corerl-tinker-")), dirs_exist_ok=True)
    torch.manual_seed(0)
    with torch.device(device):
        config = AutoConfig.from_pretrained(folder)
        made: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    made.save_pretrained(copy)
    return str(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--strategy", default="torch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rank", type=int, default=32, help="0: all weights")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backend", choices=["vllm", "hf"], help="an engine that samples for all clients")
    parser.add_argument("--python", help="interpreter of the engine's environment")
    parser.add_argument("--clients", type=int, default=4, help="clients whose adapters the engine holds at once")
    parser.add_argument("--samples", type=int, default=8, help="prompts of each client, with 4 samples each")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--graphs", action="store_true", help="let the engine compile and record graphs: 60 s more")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of the mean difference of log-probs")
    args = parser.parse_args()
    model = ModelConfig(path=with_weights(args.model, args.device), lora_rank=args.rank, lora_alpha=32)
    spec = StrategySpec(model, args.device, MicroBatching(max_tokens=16384), OptimConfig())
    selected = load_plugins().registries.training_strategies.select(args.strategy, "--strategy")
    made, sends = selected.load()(spec), bool(args.backend and args.rank)
    trainer = Trainer(made, spec, args.strategy, sends_adapters=sends)
    warm, timer = Timer(args.device), Timer(args.device)
    engine = Engine(model, args, timer) if args.backend else None  # starts beside what is not timed
    alone = [finished(play(trainer, number, args, warm))[0] for number in range(2)]
    again = [finished(play(trainer, number, args, warm))[0] for number in range(2)]
    wrong = 0
    if engine is not None:
        engine.started()
    together = finished(*(play(trainer, number, args, timer) for number in range(2)))
    if engine is not None:
        try:
            wrong = sampled(trainer, engine, args)
        finally:
            engine.backend.close()
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
