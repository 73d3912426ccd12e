"""The simulator: measured steps beside simulated ones, and its own cost for many GPUs.

python benchmarks/simulate.py measured      # two tables in Markdown, of docs/simulate.md; 5 s
python benchmarks/simulate.py cost          # processor seconds of a step of 16,384 responses on 1,024 GPUs; 30 s
"""

import argparse
import sys
import time

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl_simulate.job import EnginePool, Job, Trainers
from corerl_simulate.lengths import LogNormal
from corerl_simulate.run import Simulation
from corerl_simulate.table import read_table
from corerl_simulate.validation import compare, shape

GOAL = 0.15
SECONDS = 10.0
SEVEN_B = {
    "hidden": 3584,
    "intermediate": 18_944,
    "layers": 28,
    "heads": 28,
    "key_value_heads": 4,
    "head_size": 128,
    "tied": False,
}


def measured() -> bool:
    """Print a table for each table of rates; whether every step without a known reason is within ``GOAL``."""
    met = True
    for rates in ("h200", "h200_former"):
        print(f"\n`{rates}`:\n\n| step | measured in | measured, s | simulated, s | ratio | beside |")
        print("|---|---|---|---|---|---|")
        for each in compare(name=rates):
            met = met and (bool(each.beside) or abs(each.ratio - 1) <= GOAL)
            whole, simulated, ratio = each.measured["step"], each.simulated.seconds, f"{each.ratio:.2f}"
            ratio = ratio if abs(each.ratio - 1) <= GOAL else f"**{ratio}**"
            print(f"| {each.name} | {each.source} | {whole:.2f} | {simulated:.2f} | {ratio} | {each.beside} |")
    return met


def cost(gpus: int, prompts: int, mean: int, staleness: int) -> bool:
    """Print the cost of simulating a step: half of the GPUs train, half generate."""
    config = TrainConfig(ModelConfig("none"), rollout=RolloutConfig(n=8))
    config.data = DataConfig(train_batch_size=prompts, max_prompt_length=512, max_response_length=8 * mean)
    config.actor.ppo_mini_batch_size, config.trainer.max_staleness = prompts, staleness
    size, half = shape(SEVEN_B), gpus // 2
    trainers = Trainers(half, gathers=True, compiled=True, shares_prefixes=True)
    pool = EnginePool("vllm", half, 1, 1, 1e6, half)
    job = Job(config, {"actor": size, "ref": size}, trainers, pool, old_log_probs=True, is_ray=True, most=1024)
    lengths = LogNormal.with_mean(mean, 0.8)
    start = time.process_time()
    simulation = Simulation(job, lengths, 256, read_table("h200"), 3)
    print("| step | virtual s | processor s | of these the controller's |\n|---|---|---|---|")
    slowest = 0.0
    for number in (1, 2, 3):
        step = simulation.step(number)
        slowest = max(slowest, step.simulated if number > 1 else 0.0)
        print(f"| {number} | {step.seconds:.1f} | {step.simulated:.2f} | {step.controller:.2f} |", flush=True)
    simulation.close()
    print(f"all: {time.process_time() - start:.1f} s of processor")
    return slowest <= SECONDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measured", "cost"])
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--prompts", type=int, default=2048)
    parser.add_argument("--mean", type=int, default=1000)
    parser.add_argument("--staleness", type=int, default=1)
    given = parser.parse_args()
    is_met = measured() if given.what == "measured" else cost(given.gpus, given.prompts, given.mean, given.staleness)
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
