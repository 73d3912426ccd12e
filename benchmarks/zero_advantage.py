"""Seconds of an update with and without rows whose advantage is 0 (`actor.zero_advantage: skip`), and the difference.

Half of the groups of a mini-batch have no advantage. Both updates start from the same weights; each is one optimizer
step of the strategy `torch` on the CPU, with one thread. Seconds are of the processor.

    python benchmarks/zero_advantage.py
"""

import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import Experience, collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.objective import PolicyObjective, loss_weights
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_grpo.losses.options import VanillaOptions
from corerl_grpo.losses.vanilla import vanilla

GROUPS, N, PROMPT, RESPONSE, REPEATS = 8, 8, 32, 64, 3
CONFIG = Qwen2Config(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        torch.manual_seed(0)
        Qwen2ForCausalLM(CONFIG).save_pretrained(model)
        mini_batch = batch()
        trained = mini_batch.select(mini_batch.numbers().has_advantage.nonzero().squeeze(1))
        for name, tokens in (("16,384 tokens", 16384), ("1 row", None)):
            limit = MicroBatching(max_tokens=tokens, max_sequences=None if tokens else 1)
            whole, skipped = (measure(model, limit, rows) for rows in (mini_batch, trained))
            difference = max(float((a - b).abs().max()) for a, b in zip(whole[1], skipped[1], strict=True))
            print(
                f"micro-batches of {name}: {int(mini_batch.lengths.sum())} and {int(trained.lengths.sum())} tokens, "
                f"{whole[0]:.2f} and {skipped[0]:.2f} s ({whole[0] / skipped[0]:.2f} times); "
                f"largest difference of a weight {difference:.2g}"
            )


def batch() -> Experience:
    """Groups of seeded tokens; every second one has no advantage."""
    random = torch.Generator().manual_seed(0)

    def tokens(length: int) -> list[int]:
        return torch.randint(10, 200, (length,), generator=random).tolist()

    rows = GROUPS * N
    lengths = torch.randint(RESPONSE // 2, RESPONSE + 1, (rows,), generator=random).tolist()
    prompts = [tokens(PROMPT) for _ in range(GROUPS)]
    groups = [row // N for row in range(rows)]
    made = collate([prompts[group] for group in groups], [tokens(length) for length in lengths], groups)
    made.old_log_probs = torch.full(made.response_mask.shape, -5.0)
    advantages = torch.randn(rows, 1, generator=random) * (made.group_ids % 2)[:, None]
    made.advantages = torch.where(made.response_mask, advantages, 0.0)
    made.loss_weights = loss_weights(made.response_mask, "token-mean")
    return made


def measure(model: Path, limit: MicroBatching, rows: Experience) -> tuple[float, list[torch.Tensor]]:
    """The least seconds of an update, and the weights after the first."""
    spec = StrategySpec(ModelConfig(str(model)), "cpu", limit, OptimConfig(lr=1e-3))
    objective = PolicyObjective(lambda inputs: vanilla(inputs, VanillaOptions()))
    seconds, weights = [], []
    for _ in range(REPEATS):
        strategy = SingleDeviceStrategy(spec)
        start = time.process_time()
        strategy.update(rows, objective)
        seconds.append(time.process_time() - start)
        weights = [weight.clone() for _, weight in strategy.weights()]
    return min(seconds), weights


if __name__ == "__main__":
    main()
