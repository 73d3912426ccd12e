"""Collecting a step's batch: generate, score, and with a batch filter generate again until enough groups are kept."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from corerl.batch.experience import Experience
from corerl.batch.rollouts import Rollouts
from corerl.config.schema import TrainConfig
from corerl.data.prompts import Prompt
from corerl.data.tokenizer import ChatTokenizer
from corerl.errors import RunError
from corerl.registry.batch_filters import BatchFilter, FilterInputs
from corerl.registry.reward_managers import RewardManager, RewardResult
from corerl.registry.rollout_backends import SamplingParams
from corerl.seeding import Seeds
from corerl.telemetry.timers import Timers
from corerl.trainer.engine_restarts import Engines
from corerl.trainer.episodes import EpisodePlayer, add_environment
from corerl.trainer.requests import make_requests, training_sampling
from corerl.trainer.scoring import check_error_rate, check_results, score_tensors


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
        rollout: Engines,
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
        self.greedy = dataclasses.replace(self.sampling, n=1, temperature=0.0, top_p=1.0, top_k=-1)
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
        """``rollout.n`` scored responses to each prompt, and the score of a greedy one where it is needed."""
        prefix = f"train-{step}-{round_}"
        with timers("gen"):
            seeds = self.seeds.training_requests(step, len(prompts), round_)
            rollouts, greedy = self._rollouts(prompts, seeds, prefix)
        with timers("reward"):
            results = self.score(rollouts)
            if greedy is None:
                return ScoredRollouts(rollouts, results)
            by_prompt = self.score(greedy)
        return ScoredRollouts(rollouts, results, [by_prompt[group] for group in rollouts.group_ids])

    def generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, seeds: Sequence[int], prefix: str
    ) -> Rollouts:
        """Responses to all prompts, decoded."""
        if self.player is not None:
            return self.player.play(prompts, sampling, seeds, prefix)
        outputs = self.rollout.generate(make_requests(prompts, sampling, seeds, prefix))
        return Rollouts.collect(prompts, outputs, self.tokenizer.decode)

    def score(self, rollouts: Rollouts) -> list[RewardResult]:
        """One result a response.

        Raises:
            RunError: the reward manager breaks its contract, or more than ``reward.max_error_rate`` have none.
        """
        results = None
        if rollouts.episodes is None or self.config.rollout.multi_turn.score_response:
            results = self.reward.score(rollouts.reward_requests(self.config.data.max_response_length))
            check_results(results, len(rollouts))
        if rollouts.episodes is not None:
            results = add_environment(results, rollouts.episodes)
        assert results is not None
        check_error_rate(results, rollouts.responses, self.config.reward.max_error_rate)
        return results

    def _rollouts(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], prefix: str
    ) -> tuple[Rollouts, Rollouts | None]:
        """The sampled responses, and the greedy ones where they are needed."""
        greedy_prefix = f"{prefix}-greedy"
        if self.player is not None or not self.greedy_baseline:
            sampled = self.generate(prompts, self.sampling, seeds, prefix)
            return sampled, self.generate(prompts, self.greedy, seeds, greedy_prefix) if self.greedy_baseline else None
        requests = make_requests(prompts, self.sampling, seeds, prefix)
        outputs = self.rollout.generate(requests + make_requests(prompts, self.greedy, seeds, greedy_prefix))
        count, decode = len(prompts), self.tokenizer.decode
        greedy = Rollouts.collect(prompts, outputs[count:], decode)
        return Rollouts.collect(prompts, outputs[:count], decode), greedy

    def _kept_rows(self, sampled: ScoredRollouts, most: int) -> list[int]:
        """The rows of the first ``most`` groups that the filter keeps."""
        assert self.batch_filter is not None
        scores, scored = score_tensors(sampled.results)
        group_ids = torch.tensor(sampled.rollouts.group_ids)
        keep = self.batch_filter(FilterInputs(scores, scored, group_ids, sampled.components()))
        groups = torch.unique(group_ids[keep])[:most]
        rows: list[int] = torch.isin(group_ids, groups).nonzero().squeeze(1).tolist()
        return rows
