"""Checkpoints of ``megatron`` on 1 or 2 GPUs: seconds that training stands still, and what is in them.

    torchrun --nproc-per-node 2 benchmarks/gpu/megatron_checkpoints.py [--layers N] [--device cpu]

About 40 s on H100. A model of 0.9 billion weights in bf16 with float32 weights and moments (13 GB), shared by tensor
parallel. A line of JSON for each way of saving:

``library``     megatron-core's own ``save``, which returns once all is written
``waited``      the strategy's, waited for at once (``trainer.async_save=false``)
``background``  the strategy's; updates run while a thread writes

``blocked_s``: until training may go on; ``written_s``: until the checkpoint is complete; ``updates``: those in
between; ``update_s``: the slowest, and ``alone_s`` without writing beside. ``equal``: a second strategy that loads the
checkpoint has the weights, float32 weights and moments of the step that was saved, bit for bit. ``next``: largest
difference of its weights after one more update (flash attention's backward pass is not deterministic).

``lean``: a checkpoint with ``save_optimizer=false``, 10 s more: its GB, and whether a second strategy that loads it has
the weights, bit for bit, and float32 weights equal to these.
"""

import argparse
import hashlib
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from torch import Tensor
from transformers import Qwen3Config

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_outputs import TokenOutputs, Wanted
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import loss_weights
from corerl_megatron.optimizer import LibraryOptimizer
from corerl_megatron.options import MegatronOptions
from corerl_megatron.strategy import MegatronStrategy
from corerl_torch import ranks

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 16,
    "vocab_size": 331,
    "num_hidden_layers": 2,
}
LARGE: dict[str, Any] = {"hidden_size": 2048, "intermediate_size": 6144, "head_dim": 128, "vocab_size": 65536}

WAYS = ["library", "waited", "background", "background"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tensor-parallel", type=int, help="default: all ranks")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=sorted({*WAYS}), help="of saving; lean needs waited")
    arguments = parser.parse_args()
    ranks.join(arguments.device, 120.0)
    with tempfile.TemporaryDirectory() as own:
        folder = Path(ranks.gather(own)[0])
        cuda = arguments.device == "cuda"
        shape = {**LARGE, "num_hidden_layers": arguments.layers} if cuda else SMALL
        if dist.get_rank() == 0:
            heads: dict[str, Any] = {"num_attention_heads": 16 if cuda else 4, "num_key_value_heads": 8 if cuda else 2}
            Qwen3Config(architectures=["Qwen3ForCausalLM"], **shape, **heads).save_pretrained(folder)
        dist.barrier()
        named = ModelConfig(str(folder), load_format="dummy", dtype="bf16" if cuda else "fp32")
        optim = OptimConfig(lr=1e-3, eps=1e-3)
        spec = StrategySpec(named, arguments.device, MicroBatching(max_tokens=8192), optim, total_steps=1000)
        options = MegatronOptions(tensor_model_parallel_size=arguments.tensor_parallel or dist.get_world_size())
        trained, loaded = (MegatronStrategy(spec, options) for _ in range(2))
        lean = MegatronStrategy(spec, replace(options, save_optimizer=False))
        batch, objective = _batch(shape["vocab_size"], 4 if cuda else 2, 1000 if cuda else 10), _Loss()
        for _ in range(2):
            alone = _seconds(arguments.device, lambda: trained.update(batch, objective))
        ways = [way for way in arguments.ways if way != "library" or isinstance(trained.optimizer, LibraryOptimizer)]
        for way in ways:
            line = _case(way, trained, loaded, batch, objective, folder / way)
            if dist.get_rank() == 0:
                line |= {"alone_s": round(alone, 3), "GB": _gigabytes(folder / way)}
                print(json.dumps({"ranks": dist.get_world_size(), "way": way, **line}), flush=True)
            if way != "waited":
                _remove(folder / way)
        line = _lean(lean, folder / "waited", folder / "lean") if "waited" in ways else {}
        if line and dist.get_rank() == 0:
            print(json.dumps({"ranks": dist.get_world_size(), "way": "lean", **line}), flush=True)


def _remove(folder: Path) -> None:
    """On all ranks."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
    dist.barrier()


def _gigabytes(folder: Path) -> float:
    return round(sum(each.stat().st_size for each in folder.rglob("*") if each.is_file()) / 1e9, 2)


def _numbers(tensors: Iterable[Tensor]) -> set[float]:
    """The different numbers of tensors."""
    return {each for tensor in tensors for each in torch.unique(tensor.detach().float()).tolist()}


def _lean(lean: MegatronStrategy, whole: Path, folder: Path) -> dict[str, Any]:
    """The model of a whole checkpoint, saved without optimizer, spoilt, and loaded again."""
    lean.load(whole)
    saved = _weights(lean)
    folder.mkdir(exist_ok=True)
    dist.barrier()
    (lean.save(folder) or (lambda: None))()
    dist.barrier()
    with torch.no_grad():
        for each in lean.weights_table.parameters.values():
            each.zero_()
    lean.load(folder)
    again = _weights(lean)
    masters, held = _numbers(lean.optimizer.state()), _numbers(again.values()) | {0.0}
    equal = all(torch.equal(again[name], each) for name, each in saved.items())
    whole_of = ranks.gather([equal, masters <= held])
    return {
        "equal": all(each[0] for each in whole_of),
        "masters": all(each[1] for each in whole_of),
        "GB": _gigabytes(folder),
    }


def _case(
    way: str, trained: MegatronStrategy, loaded: MegatronStrategy, batch: Experience, objective: "_Loss", folder: Path
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    dist.barrier()
    saved, device = _state(trained), trained.spec.device
    _seconds(device, lambda: None)
    started = time.perf_counter()
    updates, seconds, after = 0, [0.0], dict[str, Tensor]()
    if way == "library":
        dist_checkpointing.save(trained.checkpoint._state(trained.checkpoint.saved, loading=False), str(folder))
        blocked = time.perf_counter() - started
    else:
        write = trained.save(folder) or (lambda: None)
        if way == "waited":
            write()
        blocked = time.perf_counter() - started
        writer = threading.Thread(target=write)
        if way == "background":
            writer.start()
        busy = way == "background"
        while busy:
            seconds.append(_seconds(device, lambda: trained.update(batch, objective)))
            updates += 1
            if updates == 1:
                after = _weights(trained)
            busy = any(ranks.gather(writer.is_alive()))
    dist.barrier()
    written = time.perf_counter() - started
    equal, apart = None, None
    if way != "library":
        loaded.load(folder)
        equal = _state(loaded) == saved
        if after:
            loaded.update(batch, objective)
            again = _weights(loaded)
            apart = max(float((again[name] - each).abs().max()) for name, each in after.items())
    whole = ranks.gather([blocked, written, max(seconds), equal, apart])
    return {
        "blocked_s": round(max(each[0] for each in whole), 3),
        "written_s": round(max(each[1] for each in whole), 3),
        "updates": updates,
        "update_s": round(max(each[2] for each in whole), 3),
        "equal": None if equal is None else all(each[3] for each in whole),
        "next": None if apart is None else max(each[4] for each in whole),
    }


def _seconds(device: str, work: Any) -> float:
    started = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _weights(strategy: MegatronStrategy) -> dict[str, Tensor]:
    """This rank's own weights, in host memory."""
    return {name: each.detach().to("cpu", copy=True) for name, each in strategy.weights_table.values.items()}


def _state(strategy: MegatronStrategy) -> list[str]:
    """Digests of this rank's weights and of what its optimizer keeps, in any order."""
    tensors = [*_weights(strategy).values(), *strategy.optimizer.state()]
    bits = (each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in tensors)
    return sorted(hashlib.blake2b(each.numpy().data).hexdigest() for each in bits)


def _batch(vocabulary: int, rows: int, longest: int) -> Experience:
    generator = torch.Generator().manual_seed(0)
    responses = [torch.randint(vocabulary, (longest,), generator=generator).tolist() for _ in range(rows)]
    batch = collate([[1]] * rows, responses, list(range(rows)))
    batch.loss_weights = loss_weights(batch.response_mask, "seq-mean-token-mean")
    return batch


class _Loss:
    wanted: frozenset[Wanted] = frozenset({"log_probs"})

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        assert batch.loss_weights is not None and outputs.log_probs is not None
        loss = -(outputs.log_probs * batch.loss_weights.float()).sum()
        return ObjectiveOutput(loss, {"loss": loss.detach()})


if __name__ == "__main__":
    main()
