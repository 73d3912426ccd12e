"""Evaluation on the validation prompts."""

import dataclasses
from collections.abc import Sequence

from corerl.batch.rollouts import Episode
from corerl.contracts.config import TrainConfig
from corerl.contracts.evaluations import ValidationSample
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.rollout.agents import agent_metrics
from corerl.rollout.stream import Stream
from corerl.seeding import Seeds
from corerl.telemetry.timers import Timers
from corerl.trainer.records import Records
from corerl.trainer.run import Run
from corerl_torch.validation import sample_table, validation_metrics, validation_samples


def validation_sampling(config: TrainConfig, stop_token_ids: tuple[int, ...]) -> SamplingParams:
    """How ``rollout.val_kwargs`` says that validation prompts are sampled: greedy unless ``do_sample``."""
    values = config.rollout.val_kwargs
    greedy = SamplingParams(config.data.max_response_length, values.n, temperature=0.0, stop_token_ids=stop_token_ids)
    if not values.do_sample:
        return greedy
    return dataclasses.replace(
        greedy, temperature=values.temperature, top_p=values.top_p, top_k=values.top_k, min_p=values.min_p
    )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Generates for the validation prompts and scores; training is not affected."""

    run: Run
    prompts: Sequence[Prompt]
    stream: Stream
    sampling: SamplingParams
    seeds: Seeds
    records: Records

    def metrics(self, step: int) -> dict[str, float]:
        """The metrics of the policy after a step.

        Raises:
            RunError: too many responses have no score.
        """
        timers, config = Timers(), self.run.config
        samples: list[ValidationSample] = []
        results: list[RewardResult] = []
        episodes: list[Episode] = []
        with timers("testing"):
            size = config.data.val_batch_size or len(self.prompts)
            seeds = self.seeds.validation_requests(len(self.prompts))
            for start in range(0, len(self.prompts), size):
                part = slice(start, start + size)
                scored = self.stream.play(self.prompts[part], seeds[part], self.sampling, f"val-{start}")
                samples += validation_samples(scored.rollouts, scored.results)
                results += scored.results
                episodes += scored.rollouts.episodes or ()
        self.records.log.write_samples(step, *sample_table(samples, config.trainer.log_val_generations))
        scored_hook = self.run.plugins.hook.batch_scored
        scored_hook(run=self.run, step=step, results=results, rollouts=None, experience=None)
        n = config.rollout.val_kwargs.n
        metrics = validation_metrics(samples, n) | {"timing_s/testing": timers.seconds["testing"]}
        for more in self.run.plugins.hook.validation_metrics(samples=samples, n=n):
            metrics |= more
        return metrics | {f"val-aux/{name}": value for name, value in agent_metrics(episodes).items()}
