"""Memory and time of an update by the number of recomputed layers, on the CPU.

    python benchmarks/recompute.py

A random Qwen2 of 8 layers of hidden size 256, float32, 16 rows of 64 + 192 tokens in one packed micro-batch. ``kept``
are the bytes that the forward pass keeps for the backward pass, weights left out; ``update`` is the median of 5.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import Qwen2Config

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import loss_weights
from corerl_fsdp.options import TorchOptions
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.supervised import SupervisedObjective

LAYERS, PROMPT, RESPONSE, VOCABULARY = 8, 64, 192, 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--compile", action="store_true", help="compile the layers")
    arguments = parser.parse_args()
    table = Table("recompute_layers", "kept, MiB", "update, s", "gradient norm")
    with tempfile.TemporaryDirectory() as folder:
        config = Qwen2Config(
            hidden_size=256,
            intermediate_size=768,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=VOCABULARY,
        )
        config.save_pretrained(folder)
        for layers in range(0, LAYERS + 1, 2):
            options = TorchOptions(use_remove_padding=True, recompute_layers=layers, compile=arguments.compile)
            table.add_row(str(layers), *measured(Path(folder), options, batch(arguments.rows)))
    Console().print(table)


def batch(rows: int) -> Experience:
    generator = torch.Generator().manual_seed(0)
    prompts, responses = (
        torch.randint(VOCABULARY, (rows, length), generator=generator).tolist() for length in (PROMPT, RESPONSE)
    )
    made = collate(prompts, responses, list(range(rows)))
    made.loss_weights = loss_weights(made.response_mask, "token-mean")
    return made


def measured(folder: Path, options: TorchOptions, rows: Experience) -> tuple[str, str, str]:
    """MiB that are kept, seconds of an update, and the gradient's norm in the first one."""
    torch.manual_seed(0)
    model = ModelConfig(path=str(folder), load_format="dummy")
    limits, optim = MicroBatching(max_sequences=len(rows)), OptimConfig(lr=1e-3)
    strategy = SingleDeviceStrategy(StrategySpec(model, "cpu", limits, optim=optim, total_steps=10), options)
    weights = {parameter.untyped_storage().data_ptr() for parameter in strategy.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        norm = strategy.update(rows, SupervisedObjective())["grad_norm"].total
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        strategy.update(rows, SupervisedObjective())
        seconds.append(time.perf_counter() - began)
    return f"{sum(kept.values()) / 2**20:.0f}", f"{statistics.median(seconds):.2f}", f"{norm:.6f}"


if __name__ == "__main__":
    main()
