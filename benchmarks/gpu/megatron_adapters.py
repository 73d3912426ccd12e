"""Adapters of strategy ``megatron`` on GPUs beside those of ``torch``, in float32: the largest relative differences.

    torchrun --nproc-per-node 2 benchmarks/gpu/megatron_adapters.py
    torchrun --nproc-per-node 2 benchmarks/gpu/megatron_adapters.py --device cpu --only qwen3,tp=2

Both begin with the same adapters, B not zero. Each line is a layout (its names are those of ``megatron_parity.py``;
``recompute``: all layers are computed again): the worst gradient of an adapter, the loss and the gradient norm, weights
with adapters merged after a step, the base without adapters, training that goes on from a checkpoint, and in bf16 the
loss. About 40 s on two H100. Exit code 1: a difference above 1e-4, in bf16 above 0.02.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron_parity import SHORT, _batch, _Loss, _same, _spec, _write
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_megatron import parallel
from corerl_megatron.options import MegatronOptions
from corerl_megatron.strategy import MegatronStrategy
from corerl_torch import lora, ranks

CASES = {
    1: "qwen2-tied llama,recompute",
    2: "qwen2-tied,tp=2 qwen3,tp=2,sp=True llama,tp=2,recompute qwen3,pp=2 qwen3,pp=2,vpp=2 qwen3,cp=2 qwen3 "
    "moe,tp=2,sp=True,ep=2 qwen2-critic,tp=2,sp=True",
    4: "qwen3,tp=2,sp=True,pp=2,vpp=2 qwen3,tp=2,sp=True,cp=2 qwen2-tied,tp=2 moe,tp=2,sp=True,ep=4",
}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    ranks.join(asked.device, 120.0)
    wrong = False
    for name in asked.only or CASES[dist.get_world_size()].split():
        model, *sizes = [each for each in name.split(",") if each != "recompute"]
        options = {SHORT[key]: json.loads(value.lower()) for key, _, value in (size.partition("=") for size in sizes)}
        began, failed = time.perf_counter(), ""
        found: dict[str, float] = {}
        try:
            found = _case(model, options, asked.device, recompute="recompute" in name)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        parallel.forget()
        given, errors = ranks.gather(found), [each for each in ranks.gather(failed) if each]
        worst: dict[str, Any] = {"error": errors[0]} if errors else {k: max(e[k] for e in given) for k in found}
        wrong |= bool(errors) or any(
            value > (0.02 if key == "bf16_loss" else 1e-4) for key, value in worst.items() if key != "error"
        )
        if dist.get_rank() == 0:
            print(json.dumps({"case": name, **worst, "seconds": round(time.perf_counter() - began, 1)}), flush=True)
    return int(wrong)


def _case(model: str, options: dict[str, Any], device: str, *, recompute: bool) -> dict[str, float]:
    kind, critic = model.partition("-")[0], model.endswith("-critic")
    with tempfile.TemporaryDirectory() as own:
        folder = Path(_same(own))
        if dist.get_rank() == 0:
            _write(kind, folder, tied=model.endswith("-tied"))
        dist.barrier()
        spec = _spec(folder, device, critic=critic, recompute=recompute)
        targets: Any = ATTENTION if kind == "moe" else [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
        adapters = {"lora_rank": 4, "lora_alpha": 8, "target_modules": targets}
        spec = replace(spec, model=replace(spec.model, **adapters))
        batch, objective = _batch(), _Loss(spec.head)
        true = SingleDeviceStrategy(spec, TorchOptions(logits_chunk_size=None))
        generator = torch.Generator(device).manual_seed(1)
        with torch.no_grad():
            for name, parameter in lora.trained(true.model):
                if ".lora_B." in name:
                    parameter.normal_(std=0.1, generator=generator)
        start = {name: each.detach().clone() for name, each in lora.trained(true.model)}
        ours = _started(spec, options, start)
        found = _compare(ours, true, batch, objective)
        (folder / "saved").mkdir(exist_ok=True)
        _save(ours, folder / "saved")
        dist.barrier()
        again = _started(spec, options, start)
        again.load(folder / "saved")
        for each in (ours, again):
            each.update(batch, objective)
        found["continued"] = _apart(dict(again.weights()), dict(ours.weights()))
        if device == "cuda":
            half = replace(spec, model=replace(spec.model, dtype="bf16"))
            strategy = _started(half, options, start)
            loss = strategy.update(batch, objective)["loss"].value
            plain = _started(spec, options, start).update(batch, objective)["loss"].value
            found["bf16_loss"] = abs(loss / plain - 1)
        dist.barrier()
        return found


def _started(spec: Any, options: dict[str, Any], start: dict[str, Tensor]) -> MegatronStrategy:
    strategy = MegatronStrategy(spec, MegatronOptions(**options, logits_chunk_size=7))
    assert strategy.adapted is not None
    strategy.adapted.fill(start)
    return strategy


def _save(strategy: MegatronStrategy, folder: Path) -> None:
    write = strategy.save(folder)
    if write is not None:
        write()


def _compare(
    ours: MegatronStrategy, true: SingleDeviceStrategy, batch: Experience, objective: _Loss
) -> dict[str, float]:
    """Of this rank's share of the rows, and of everything that ranks have together."""
    own = batch.select(torch.arange(ours.data_parallel_rank, len(batch), ours.data_parallel_size))
    output = "values" if true.spec.head == "value" else "log_probs"
    found: dict[str, float] = {}
    with ours.base(ours.spec.micro_batching), true.base(true.spec.micro_batching):
        given, wanted = (getattr(each.forward(own, [output]), output) for each in (ours, true))  # type: ignore[list-item]
        found["base"] = float((given - wanted).abs().max())
    gradient: dict[str, dict[str, Tensor]] = {}
    ours_step, true_step = ours.optimizer.step, true._step

    def step_ours() -> float:
        assert ours.adapted is not None
        gradient["ours"] = {name: each.clone() for name, each in ours.adapted.stream(ours.optimizer.gradient)}
        return float(ours_step())

    def step_true() -> float:
        gradient["true"] = {name: each.grad.clone() for name, each in lora.trained(true.model)}  # type: ignore[union-attr]
        return true_step()

    ours.optimizer.step, true._step = step_ours, step_true  # type: ignore[method-assign]
    metrics = ours.update(own, objective), true.update(batch, objective)
    ours.optimizer.step, true._step = ours_step, true_step  # type: ignore[method-assign]
    for name in ("loss", "grad_norm"):
        found[name] = abs(metrics[0][name].value / metrics[1][name].value - 1)
    found["gradient"] = _apart(gradient["ours"], gradient["true"])
    found["weights"] = _apart(dict(ours.weights()), dict(true.weights()))
    return found


def _apart(given: dict[str, Tensor], true: dict[str, Tensor]) -> float:
    """The largest relative error of a tensor."""
    assert given.keys() == true.keys()
    errors = [
        (given[name].float() - each.float()).norm() / (each.float().norm() + 1e-12) for name, each in true.items()
    ]
    return float(torch.stack(errors).max())


if __name__ == "__main__":
    sys.exit(main())
