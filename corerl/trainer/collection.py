"""Collecting a step's batch: generate, score, and with a batch filter generate again until enough groups are kept."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corerl.batch.rollouts import Rollouts
from corerl.contracts.batch_filters import BatchFilter, FilterInputs
from corerl.contracts.config import TrainConfig
from corerl.contracts.experience import Experience
from corerl.contracts.reward_managers import RewardManager, RewardResult
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import ChatTokenizer
from corerl.errors import RunError
from corerl.seeding import Seeds
from corerl.telemetry.timers import Timers
from corerl.trainer.arrivals import Arrivals
from corerl.trainer.engine_restarts import Engines
from corerl.trainer.episodes import EpisodePlayer
from corerl.trainer.requests import greedy_sampling, make_requests, training_sampling
from corerl.trainer.rollout_worker import RolloutWorker
from corerl.trainer.scoring import add_environment, check_error_rate


@dataclasses.dataclass(frozen=True)
class ScoredRollouts:
    """B responses with their scores.

    Attributes:
        greedy_results: of the greedy response to each row's prompt, one a row; None when nobody needs them.
    """

    rollouts: Rollouts
    results: list[RewardResult]
    greedy_results: list[RewardResult] | None = None

    def __len__(self) -> int:
        return len(self.results)

    def experience(self) -> Experience:
        """The tensors, each score on its response's last token; a row without a score, or baseline, is masked out."""
        experience = self.rollouts.experience()
        scores, scored = score_tensors(self.results)
        if self.greedy_results is not None:
            experience.greedy_scores, has_baseline = score_tensors(self.greedy_results)
            scored &= has_baseline
        experience.response_mask &= scored[:, None]
        experience.rewards = torch.zeros(experience.response_mask.shape)
        experience.rewards[torch.arange(len(self)), experience.response_lengths - 1] = torch.where(scored, scores, 0.0)
        return experience

    def components(self) -> dict[str, Tensor]:
        """Name -> (B,) float32: the named parts of the scores, 0 in a row that lacks one."""
        names = dict.fromkeys(name for result in self.results for name in result.components)
        return {name: torch.tensor([result.components.get(name, 0.0) for result in self.results]) for name in names}

    def staleness(self, step: int) -> list[int]:
        """By how many updates the weights that began each response lag the policy that ``step`` updates."""
        return [step - 1 - completion.weight_version for completion in self.rollouts.completions]

    def select(self, rows: Sequence[int]) -> "ScoredRollouts":
        """These rows, groups renumbered in the order in which they come."""
        greedy = self.greedy_results
        return ScoredRollouts(
            self.rollouts.select(rows),
            [self.results[row] for row in rows],
            None if greedy is None else [greedy[row] for row in rows],
        )

    @classmethod
    def join(cls, parts: Sequence["ScoredRollouts"]) -> "ScoredRollouts":
        """All rows, one part after the other; the groups of different parts are different."""
        if len(parts) == 1:
            return parts[0]
        greedy = [result for part in parts for result in part.greedy_results or ()]
        return cls(
            Rollouts.join([part.rollouts for part in parts]),
            [result for part in parts for result in part.results],
            greedy if parts[0].greedy_results is not None else None,
        )


class Collector:
    """Generates and scores.

    Args:
        greedy_baseline: score a greedy response to every prompt as well.
        player: plays responses in several turns; None: they have one.
    """

    def __init__(
        self,
        config: TrainConfig,
        rollout: RolloutWorker | Engines,
        reward: RewardManager,
        tokenizer: ChatTokenizer,
        seeds: Seeds,
        *,
        greedy_baseline: bool,
        batch_filter: BatchFilter | None,
        player: EpisodePlayer | None = None,
    ) -> None:
        self.config = config
        self.rollout = rollout
        self.reward = reward
        self.tokenizer = tokenizer
        self.seeds = seeds
        self.batch_filter = batch_filter
        self.player = player
        self.sampling = training_sampling(config, tokenizer.stop_token_ids)
        self.greedy = greedy_sampling(self.sampling)
        self.greedy_baseline = greedy_baseline

    def collect(
        self, step: int, draw: Callable[[], list[Prompt]], timers: Timers
    ) -> tuple[ScoredRollouts, dict[str, float]]:
        """The batch of a step, and metrics of what was left out of it.

        Args:
            draw: gives the next prompts.

        Raises:
            RunError: after ``algorithm.filter_groups.max_num_gen_batches`` generated batches too few groups are kept.
        """
        if self.batch_filter is None:
            return self.sample(draw(), step, 0, timers), {}
        wanted, most = self.config.data.train_batch_size, self.config.algorithm.filter_groups.max_num_gen_batches
        kept: list[ScoredRollouts] = []
        groups = generated = 0
        for round_ in range(most):
            prompts = draw()
            sampled = self.sample(prompts, step, round_, timers)
            generated += len(prompts)
            with timers("filter"):
                kept_rows = self._kept_rows(sampled, wanted - groups)
                if kept_rows:
                    kept.append(sampled.select(kept_rows))
                    groups += kept[-1].rollouts.groups
            if groups == wanted:
                metrics = {"training/num_gen_batches": round_ + 1.0, "training/num_gen_prompts": float(generated)}
                return ScoredRollouts.join(kept), metrics
        raise RunError(
            f"algorithm.filter_groups kept {groups} of the {generated} prompts in {most} generated batches, and a step "
            f"needs {wanted}: the prompts are too easy or too hard for the model as it is now (look at the sample "
            "rollouts), or raise algorithm.filter_groups.max_num_gen_batches, data.gen_batch_size or rollout.n"
        )

    def sample(self, prompts: Sequence[Prompt], step: int, round_: int, timers: Timers) -> ScoredRollouts:
        """``rollout.n`` scored responses to each prompt, and the score of a greedy one where it is needed.

        What can be scored while others generate is: the timer ``reward`` has what is left then.
        """
        prefix = f"train-{step}-{round_}"
        draws = [(self.sampling, prefix)]
        if self.greedy_baseline:
            draws.append((self.greedy, f"{prefix}-greedy"))
        with timers("gen"):
            seeds = self.seeds.training_requests(step, len(prompts), round_)
            sampled, *greedy = self.generate(prompts, seeds, *draws)
            rollouts = sampled.rollouts()
        with timers("reward"):
            results = self.score(rollouts, sampled)
            if not greedy:
                return ScoredRollouts(rollouts, results)
            by_prompt = self.score(greedy[0].rollouts(), greedy[0])
        return ScoredRollouts(rollouts, results, [by_prompt[group] for group in rollouts.group_ids])

    def generate(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], *draws: tuple[SamplingParams, str]
    ) -> list[Arrivals]:
        """Responses to all prompts, decoded, their scores under way.

        Args:
            draws: how the prompts are sampled, and what the requests' ids begin with; each is a batch of its own.
        """
        scored = self.player is None or self.config.rollout.multi_turn.score_response
        reward, longest = self.reward if scored else None, self.config.data.max_response_length
        batches = [Arrivals(sampling.n, reward, longest) for sampling, _ in draws]
        if self.player is not None:
            for batch, (sampling, prefix) in zip(batches, draws, strict=True):
                for rows, part in self.player.play(prompts, sampling, seeds, prefix):
                    batch.add(rows, part)
            return batches
        requests = [each for sampling, prefix in draws for each in make_requests(prompts, sampling, seeds, prefix)]
        for finished in self.rollout.generate(requests):
            for number, (batch, (sampling, _)) in enumerate(zip(batches, draws, strict=True)):
                first, n = number * len(prompts), sampling.n
                groups = [position - first for position in finished if 0 <= position - first < len(prompts)]
                if not groups:
                    continue
                outputs = [finished[first + group] for group in groups]
                part = Rollouts.collect([prompts[group] for group in groups], outputs, self.tokenizer.decode)
                batch.add([row for group in groups for row in range(group * n, group * n + n)], part)
        return batches

    def score(self, rollouts: Rollouts, batch: Arrivals) -> list[RewardResult]:
        """One result a response of the batch, whose rollouts these are.

        Raises:
            RunError: the reward manager breaks its contract, or more than ``reward.max_error_rate`` have none.
        """
        results = batch.results()
        if rollouts.episodes is not None:
            results = add_environment(results, rollouts.episodes)
        assert results is not None
        check_error_rate(results, rollouts.responses, self.config.reward.max_error_rate)
        return results

    def _kept_rows(self, sampled: ScoredRollouts, most: int) -> list[int]:
        """The rows of the first ``most`` groups that the filter keeps."""
        assert self.batch_filter is not None
        scores, scored = score_tensors(sampled.results)
        group_ids = torch.tensor(sampled.rollouts.group_ids)
        keep = self.batch_filter(FilterInputs(scores, scored, group_ids, sampled.components()))
        groups = torch.unique(group_ids[keep])[:most]
        rows: list[int] = torch.isin(group_ids, groups).nonzero().squeeze(1).tolist()
        return rows


def score_tensors(results: Sequence[RewardResult]) -> tuple[Tensor, Tensor]:
    """(B,) float32 scores, 0 where there is none, and (B,) bool, which there are."""
    scores = torch.tensor([0.0 if result.score is None else result.score for result in results])
    return scores, torch.tensor([result.score is not None for result in results], dtype=torch.bool)
