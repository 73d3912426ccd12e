"""Strategy ``megatron`` on GPUs beside ``torch``, in float32: the largest differences, for many ways to share a model.

    torchrun --nproc-per-node 4 benchmarks/gpu/megatron_parity.py [--only NAME …] [--override JSON]

Run it on 1, 2 and 4 GPUs. Each line of JSON is a layout: log-probs and entropy, the relative error of the loss, of the
gradient norm and of the worst gradient (mapped back to Hugging Face names), weights after one step without and with
the distributed optimizer (recomputing all layers), whether weights come out as they went in, also of a checkpoint that
one process reads, and how far training that goes on from it is off. ``bf16_loss`` is the relative error of the loss in
bf16, and of three updates with all offloaded between the last must be finite. ``…-replay`` replays random experts.
``deepseek`` and ``glm`` (GLM-4-MoE) have a dense first layer, then sigmoid experts whose bias is no zero; in ``-dense``
all layers are dense, and run on a CPU too (``--device cpu``). ``gptoss`` alternates windows. A case takes 3 to 6 s.
"""

import argparse
import json
import math
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Glm4MoeConfig,
    GptOssConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.objective import ObjectiveOutput
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import Output, TokenOutputs
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import loss_weights
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_megatron import parallel
from corerl_megatron.options import MegatronOptions
from corerl_megatron.reading import read
from corerl_megatron.strategy import MegatronStrategy
from corerl_torch import ranks
from corerl_torch.routers import COLUMN
from corerl_torch.weights.names import as_in_files

VOCABULARY = 331
LAYERS, EXPERTS, CHOSEN = 4, 8, {"moe": 2, "deepseek": 4, "glm": 2, "gptoss": 2}
SHORT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "sp": "sequence_parallel",
}
CASES = {
    1: "qwen2 qwen2-tied qwen3 llama moe moe-replay deepseek deepseek-dense glm gptoss gptoss-replay",
    2: "qwen2-tied,tp=2 qwen3,tp=2 qwen3,tp=2,sp=True llama,pp=2 qwen2-tied,pp=2 qwen3,pp=2,vpp=2 qwen3,cp=2 qwen3 "
    "moe,ep=2 moe,tp=2,sp=True moe,tp=2,sp=True,ep=2 moe,pp=2 qwen2-critic,tp=2,sp=True qwen2-critic,pp=2 "
    "moe-replay,ep=2 moe-replay,tp=2,sp=True,ep=2 moe-replay,pp=2 moe-replay,cp=2 "
    "deepseek-dense,tp=2 deepseek,tp=2,sp=True deepseek,tp=2,sp=True,ep=2 deepseek,pp=2 deepseek,pp=2,vpp=2 "
    "deepseek,ep=2 deepseek,cp=2 deepseek-replay,pp=2 glm-dense,tp=2 glm,tp=2,sp=True,ep=2 glm,pp=2 glm,ep=2 glm,cp=2 "
    "gptoss,tp=2,sp=True gptoss,tp=2,sp=True,ep=2 gptoss,pp=2 gptoss,ep=2 gptoss,cp=2",
    4: "qwen2-tied,tp=2,pp=2 qwen3,tp=2,sp=True,pp=2,vpp=2 qwen3,tp=2,cp=2 qwen3,tp=2,sp=True,cp=2 llama,pp=2,cp=2 "
    "llama,pp=4 qwen2-tied,tp=2 qwen3,cp=4 moe,ep=4 moe,ep=2,pp=2 moe,tp=2,sp=True,ep=4 "
    "moe-replay,ep=2,pp=2 moe-replay,tp=2,sp=True,ep=4",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="names of layouts, such as qwen3,tp=2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--override",
        type=json.loads,
        default={},
        help="override_transformer_config, such as '{\"persist_layer_norm\": true}'",
    )
    arguments = parser.parse_args()
    ranks.join(arguments.device, 120.0)
    for name in arguments.only or CASES[dist.get_world_size()].split():
        model, *sizes = name.split(",")
        options = {SHORT[key]: json.loads(value.lower()) for key, _, value in (size.partition("=") for size in sizes)}
        options["override_transformer_config"] = arguments.override
        started = time.perf_counter()
        try:
            found = _case(model, options, arguments.device)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
            if dist.get_rank() == 0:
                traceback.print_exc(file=sys.stderr)
        finally:
            parallel.forget()
        line = {"ranks": dist.get_world_size(), "case": name, **_worst(ranks.gather(found))}
        if dist.get_rank() == 0:
            print(json.dumps(line | {"seconds": round(time.perf_counter() - started, 1)}), flush=True)


def _worst(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all ranks the largest numbers, and whether all say yes."""
    errors = [each["error"] for each in found if "error" in each]
    if errors:
        return {"error": errors[0]}
    worst: dict[str, Any] = {}
    for key, value in found[0].items():  # rank 0 has all of them
        given = [each[key] for each in found if key in each]
        worst[key] = all(given) if isinstance(value, bool) else max(given)
    return worst


def _case(model: str, options: dict[str, Any], device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as own:
        folder = Path(_same(own))
        if dist.get_rank() == 0:
            _write(model.partition("-")[0], folder, tied=model.endswith("-tied"), dense=model.endswith("-dense"))
        dist.barrier()
        spec = _spec(folder, device, critic=model.endswith("-critic"))
        batch, objective = _batch(), _Loss(spec.head)
        if model.endswith("-replay"):
            kind = model.partition("-")[0]
            batch.columns[COLUMN] = _experts(batch, LAYERS - (kind in ("deepseek", "glm")), CHOSEN[kind])
        expected = _torch(spec, batch, objective)
        plain = MegatronStrategy(spec, MegatronOptions(**options, use_distributed_optimizer=False, logits_chunk_size=7))
        found = _compare(plain, batch, objective, expected)
        del plain
        found |= _goes_on(spec, options, batch, objective, expected["after"], folder)
        if device == "cuda":
            losses = _bf16(folder, device, options, batch, objective, spec.head)
            found["bf16_loss"] = abs(losses[0] / expected["metrics"]["loss"] - 1)
            found["bf16_finite"] = all(math.isfinite(loss) for loss in losses)
        dist.barrier()
        return found


def _same(folder: str) -> str:
    """Rank 0's folder, on all ranks."""
    given: list[str] = ranks.gather(folder)
    return given[0]


def _spec(folder: Path, device: str, *, critic: bool, dtype: Any = "fp32", recompute: bool = False) -> StrategySpec:
    stored = (folder / "model.safetensors").is_file()
    load: Any = "auto" if stored else "dummy"
    named = ModelConfig(str(folder), load_format=load, dtype=dtype, enable_gradient_checkpointing=recompute)
    optim = OptimConfig(lr=1e-2, weight_decay=0.1, eps=1e-3, lr_scheduler_type="linear")
    cut = MicroBatching(max_tokens=60)
    head: Any = "value" if critic else "lm"
    return StrategySpec(named, device, cut, optim, total_steps=10, grad_clip=1e6, temperature=0.7, head=head)


def _write(kind: str, folder: Path, *, tied: bool, dense: bool = False) -> None:
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
    shape |= {
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": tied,
    }
    if kind == "moe":
        experts: dict[str, Any] = {
            "num_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN[kind],
            "moe_intermediate_size": 64,
            "norm_topk_prob": True,
        }
        Qwen3MoeConfig(architectures=["Qwen3MoeForCausalLM"], **shape, **experts).save_pretrained(folder)
    elif kind in CHOSEN:
        _write_weights(kind, folder, shape, dense=dense)
    else:
        config: Any = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "llama": LlamaConfig}[kind]
        config(architectures=[f"{kind.capitalize()}ForCausalLM"], **shape).save_pretrained(folder)


def _write_weights(kind: str, folder: Path, shape: dict[str, Any], *, dense: bool) -> None:
    """With weights, so that no bias is zero."""
    experts: dict[str, Any] = {"n_routed_experts": EXPERTS, "num_experts_per_tok": CHOSEN[kind], "n_shared_experts": 2}
    experts |= {"moe_intermediate_size": 64, "routed_scaling_factor": 1.5}
    experts["first_k_dense_replace"] = LAYERS if dense else 1
    if kind == "gptoss":
        windows = ["sliding_attention", "full_attention"] * (LAYERS // 2)
        chosen: dict[str, Any] = {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN[kind]}
        config: Any = GptOssConfig(**shape, **chosen, layer_types=windows, sliding_window=8)
    elif kind == "glm":
        config = Glm4MoeConfig(**shape, **experts, use_qk_norm=True, attention_bias=True)
    else:
        yarn = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
        latent: dict[str, Any] = {"q_lora_rank": 48, "kv_lora_rank": 40, "qk_rope_head_dim": 16}
        latent |= {"qk_nope_head_dim": 24, "v_head_dim": 32, "n_group": 4, "topk_group": 2}
        latent |= {"max_position_embeddings": 128, "rope_parameters": {**yarn, "mscale": 1.0, "mscale_all_dim": 0.7}}
        own = {name: size for name, size in shape.items() if name != "head_dim"}
        config = DeepseekV3Config(**{**own, "num_key_value_heads": 4}, **experts, **latent)
    torch.manual_seed(0)
    build: Any = AutoModelForCausalLM.from_config
    model = build(config)
    for name, tensor in model.state_dict().items():
        if name.endswith("bias"):
            tensor.normal_(std=0.1)
    model.save_pretrained(folder)


def _batch() -> Experience:
    generator = torch.Generator().manual_seed(0)

    def rows(longest: int) -> list[list[int]]:
        lengths = torch.randint(1, longest, (13,), generator=generator).tolist()
        return [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]

    batch = collate(rows(9), rows(24), list(range(13)))
    batch.loss_weights = loss_weights(batch.response_mask, "seq-mean-token-mean")
    batch.returns = torch.randn(batch.response_mask.shape, generator=generator)
    return batch


def _experts(batch: Experience, layers: int, chosen: int) -> TokenColumn:
    """Random ones of all tokens but the last of each row: no router chooses them by itself."""
    counts = (torch.arange(batch.input_ids.shape[1]) < batch.lengths[:, None] - 1).int()
    scores = torch.rand(int(counts.sum()), layers, EXPERTS, generator=torch.Generator().manual_seed(1))
    return TokenColumn(scores.topk(chosen).indices.to(torch.uint8), counts)


class _Loss:
    """With every number of a language model, or squared errors of a critic."""

    def __init__(self, head: str) -> None:
        names: tuple[Output, ...] = ("values",) if head == "value" else ("log_probs", "entropy", "sum_pi_squared")
        self.wanted = frozenset(names)

    def __call__(self, outputs: TokenOutputs, batch: Experience) -> ObjectiveOutput:
        assert batch.loss_weights is not None
        if outputs.values is not None:
            assert batch.returns is not None
            terms = (outputs.values - batch.returns) ** 2
        else:
            assert outputs.log_probs is not None and outputs.entropy is not None and outputs.sum_pi_squared is not None
            terms = -outputs.log_probs + 0.3 * outputs.entropy - 2 * outputs.sum_pi_squared
        loss = (terms * batch.loss_weights.float()).sum()
        return ObjectiveOutput(loss, {"loss": loss.detach()})


def _torch(spec: StrategySpec, batch: Experience, objective: _Loss) -> dict[str, Any]:
    strategy = SingleDeviceStrategy(spec, TorchOptions(logits_chunk_size=None))
    gradient: dict[str, Tensor] = {}
    take_step = strategy._step

    def step() -> float:
        for name, parameter in strategy.model.named_parameters():
            gradient[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        return take_step()

    before = _copied(strategy.weights())
    outputs = strategy.forward(batch, objective.wanted)
    strategy._step = step  # type: ignore[method-assign]
    metrics = strategy.update(batch, objective)
    return {
        "outputs": outputs,
        "before": before,
        "metrics": {name: mean.value for name, mean in metrics.items()},
        "gradient": _copied(as_in_files(strategy.model.config, gradient.items())),
        "after": _copied(strategy.weights()),
    }


def _compare(
    strategy: MegatronStrategy, batch: Experience, objective: _Loss, expected: dict[str, Any]
) -> dict[str, Any]:
    mine = torch.arange(strategy.data_parallel_rank, len(batch), strategy.data_parallel_size)
    share = batch.select(mine)
    before = _copied(strategy.weights())
    same = before.keys() == expected["before"].keys()
    found: dict[str, Any] = {
        "weights_in_and_out": same and all(torch.equal(each, expected["before"][name]) for name, each in before.items())
    }
    outputs = strategy.forward(share, objective.wanted)
    for output in sorted(objective.wanted):
        given: Tensor = getattr(outputs, output)
        true: Tensor = getattr(expected["outputs"], output)[mine, : given.shape[1]]
        found[output] = float((given - true).abs().max())
    gradient: dict[str, Tensor] = {}
    take_step = strategy.optimizer.step

    def step() -> float:
        gradient.update(_copied(strategy.weights_table.stream(strategy.optimizer.gradient)))
        return float(take_step())

    strategy.optimizer.step = step
    metrics = strategy.update(share, objective)
    for name in ("loss", "grad_norm"):
        found[name] = abs(metrics[name].value / expected["metrics"][name] - 1)
    scale = max(float(each.norm()) for each in expected["gradient"].values())
    found["gradient"] = max(
        float((each - expected["gradient"][name]).norm()) / max(float(expected["gradient"][name].norm()), 1e-4 * scale)
        for name, each in gradient.items()
    )
    found["weights"] = _furthest(_copied(strategy.weights()), expected["after"])
    return found


def _goes_on(
    spec: StrategySpec,
    options: dict[str, Any],
    batch: Experience,
    objective: _Loss,
    after: dict[str, Tensor],
    folder: Path,
) -> dict[str, Any]:
    """With the distributed optimizer, and layers computed again: one step, a checkpoint, and one more step."""
    spec = _spec(folder, spec.device, critic=spec.head == "value", recompute=True)
    strategies = [MegatronStrategy(spec, MegatronOptions(**options)) for _ in range(2)]
    share = batch.select(torch.arange(strategies[0].data_parallel_rank, len(batch), strategies[0].data_parallel_size))
    strategies[0].update(share, objective)
    found: dict[str, Any] = {"weights_distributed": _furthest(_copied(strategies[0].weights()), after)}
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir(exist_ok=True)
    dist.barrier()
    (strategies[0].save(checkpoint) or (lambda: None))()
    dist.barrier()  # on the CPU rank 0 alone has written
    saved = _copied(strategies[0].weights())
    if spec.head == "lm" and dist.get_rank() == 0:
        alone = dict(read(checkpoint, spec.model))
        found["read_without_ranks"] = alone.keys() == saved.keys() and all(
            torch.equal(each, saved[name]) for name, each in alone.items()
        )
    dist.barrier()
    strategies[1].load(checkpoint)
    for strategy in strategies:
        strategy.update(share, objective)
    found["resumed"] = _furthest(_copied(strategies[1].weights()), _copied(strategies[0].weights()))
    return found


def _bf16(
    folder: Path, device: str, options: dict[str, Any], batch: Experience, objective: _Loss, head: str
) -> list[float]:
    spec = _spec(folder, device, critic=head == "value", dtype="bf16", recompute=True)
    offloaded = MegatronOptions(**options, param_offload=True, grad_offload=True, optimizer_offload=True)
    strategy = MegatronStrategy(spec, offloaded)
    share = batch.select(torch.arange(strategy.data_parallel_rank, len(batch), strategy.data_parallel_size))
    losses = []
    for _ in range(3):
        losses.append(strategy.update(share, objective)["loss"].value)
        strategy.offload()
        strategy.onload()
    return losses


def _copied(named: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named}


def _furthest(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return max(float((left[name] - true).abs().max()) for name, true in right.items())


if __name__ == "__main__":
    main()
