"""What scoring adds to a step: responses scored as each finishes, against all of them after the last.

    python benchmarks/scoring_overlap.py [--prompts 64] [--n 4] [--tokens 512] [--seconds 0.02]

A small random model generates with ``hf`` on the CPU. A few of its tokens end a response, so that lengths differ as
they do in training; the scorer sleeps, as one that asks a server does. Both runs generate the same responses, and the
scores are compared.
"""

import argparse
import json
import time
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from corerl.contracts.config import DataConfig, ModelConfig, RolloutConfig, TrainConfig
from corerl.contracts.reward_managers import RewardManager
from corerl.contracts.tokenizers import ChatTokenizer
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.data.tokenizer import load_tokenizer
from corerl.rollout.player import Player
from corerl.rollout.request_queue import RequestQueue
from corerl.rollout.requests import training_sampling
from corerl.rollout.scored import ScoredRollouts
from corerl.rollout.stream import Stream
from corerl.rollout.worker import RolloutWorker
from corerl.seeding import Seeds
from corerl_rewards.naive import NaiveRewardManager
from corerl_testing.tiny_model import tiny_model

SOURCE = "asleep"
ENDS = tuple(range(97, 100))
"""tokens that end a response"""


def asleep(
    response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any], *, seconds: float
) -> float:
    """A scorer that waits for somebody."""
    time.sleep(seconds)
    return float(len(response))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--n", type=int, default=4, help="responses to a prompt")
    parser.add_argument("--tokens", type=int, default=512, help="of the longest response")
    parser.add_argument("--seconds", type=float, default=0.02, help="that the scorer takes for one")
    parser.add_argument("--workers", type=int, default=4, help="scorers at a time")
    given = parser.parse_args()
    scorer = partial(asleep, seconds=given.seconds)
    reward = NaiveRewardManager({SOURCE: scorer}, num_workers=given.workers, timeout=60.0 + given.seconds)
    whole = cast(RewardManager, SimpleNamespace(score=reward.score))
    batches, numbers = {}, []
    print(
        f"{given.prompts} prompts × {given.n} responses, {given.seconds:g} s for one score, {given.workers} at a time"
    )
    print("scored            generation s  scoring after it s    sum s")
    for name, how in (("after the last", whole), ("as each finishes", reward)):
        batches[name], seconds = collect(given, how)
        numbers.append({"scored": name, **seconds})
        print(f"{name:<16}  {seconds['gen']:>12.2f}  {seconds['reward']:>18.2f}  {sum(seconds.values()):>7.2f}")
    reward.close()
    first, second = batches.values()
    print(f"the same responses and scores: {first == second}")
    print(json.dumps({"same": first == second, "runs": numbers}))


def collect(given: argparse.Namespace, reward: RewardManager) -> tuple[ScoredRollouts, dict[str, float]]:
    """One batch, and seconds by part."""
    config = TrainConfig(
        model=ModelConfig(path=str(tiny_model()), dtype="fp32"),
        data=DataConfig(train_batch_size=given.prompts, max_response_length=given.tokens),
        rollout=RolloutConfig(n=given.n),
    )
    config.actor.device = "cpu"
    decode = load_tokenizer(config.model).decode
    tokenizer = cast(ChatTokenizer, SimpleNamespace(stop_token_ids=ENDS, decode=decode))
    worker = RolloutWorker(config)
    player = Player(RequestQueue(worker.generate), tokenizer, reward, given.tokens)
    prompts = [Prompt(index, (72, 101, index % 256, 50), [], SOURCE, "", {}) for index in range(given.prompts)]
    stream = Stream(
        config,
        player,
        cast(PromptDataset, prompts),
        PromptSampler(given.prompts, given.prompts, False, 0),
        Seeds(0),
        training_sampling(config, ENDS),
        batch_filter=None,
        greedy_baseline=False,
        total_steps=1,
    )
    groups = stream.take(1)
    stream.close()
    worker.close()
    return groups.scored, dict(groups.seconds)


if __name__ == "__main__":
    main()
