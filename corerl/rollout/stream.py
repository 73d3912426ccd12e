"""The stream of groups: admission, the order of training, and replacement of dropped groups.

A group is admitted if it can still be trained at most ``trainer.max_staleness`` = k updates after the weights that
begin it. During step s, k · B groups beyond the step's own B are therefore open or wait to be trained; B is
``data.train_batch_size``. With k = 0 a step's groups are begun by the weights of the step before, and their numbers
do not depend on the order in which responses come. A group that the batch filter drops gives its place to the next.

A group must also be trained in time (:mod:`corerl.rollout.choice`).
"""

import asyncio
import dataclasses
import functools
import itertools
import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from corerl.contracts.batch_filters import BatchFilter, FilterInputs
from corerl.contracts.config import TrainConfig
from corerl.contracts.rollout_backends import SamplingParams
from corerl.data.prompts import Prompt, PromptDataset
from corerl.data.sampler import PromptSampler
from corerl.errors import EngineFailsError, LostError, NonFiniteError, RunError
from corerl.rollout.agents import agent_metrics
from corerl.rollout.choice import Choice
from corerl.rollout.event_loop import EventLoop
from corerl.rollout.groups import Group
from corerl.rollout.player import Player, all_or_none
from corerl.rollout.requests import greedy_sampling
from corerl.rollout.restored import Fitting
from corerl.rollout.scored import FinishedGroup, ScoredRollouts, score_tensors
from corerl.rollout.scoring import check_error_rate
from corerl.seeding import Seeds
from corerl.terminal.notices import Recurring, say

SLOW = 1.0
"""seconds that a step waits for scores before a notice"""


@dataclasses.dataclass(frozen=True)
class StepGroups:
    """The groups of one step.

    Attributes:
        scored: their responses, in the order of the groups' numbers.
        metrics: of the groups as a whole.
        seconds: by part, the controller's time.
        background: by part, the time in a thread of its own.
    """

    scored: ScoredRollouts
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    background: Mapping[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class StreamState:
    """What of a stream a checkpoint keeps.

    Attributes:
        sampler: the sampler's state: which groups were trained or dropped.
        finished: groups that wait to be trained; a resumed run plays every other group anew.
    """

    sampler: Mapping[str, Any]
    finished: Sequence[FinishedGroup]


@dataclasses.dataclass(eq=False)
class _Member:
    """A group that was admitted.

    Attributes:
        version: of the weights that begin it; None as long as no request of it is sent.
        finished: how many had finished when it did, itself included; 0: it is open.
    """

    number: int
    version: int | None
    group: Group
    started: float = dataclasses.field(default_factory=time.perf_counter)
    scored: ScoredRollouts | None = None
    baseline: ScoredRollouts | None = None
    finished: int = 0
    ended: float = 0.0


class Stream:
    """Plays groups, and hands out those of each step.

    Args:
        sampler: the order of ``prompts``; its state is where the stream begins.
        sampling: of training responses.
        greedy_baseline: also score a greedy response to every prompt.
        total_steps: no group is admitted for a later step.
        finished: groups of a checkpoint, which are not played again unless they do not fit this run.
        vocabulary: of the model; 0: unknown.
        measured: metrics of the requests since its last call.
        on_finished: called once another group is complete, with the next ``data.train_batch_size`` groups in the order
            of their numbers; None stands for an open group.
    """

    def __init__(
        self,
        config: TrainConfig,
        player: Player,
        prompts: PromptDataset,
        sampler: PromptSampler,
        seeds: Seeds,
        sampling: SamplingParams,
        *,
        batch_filter: BatchFilter | None,
        greedy_baseline: bool,
        total_steps: int,
        finished: Sequence[FinishedGroup] = (),
        vocabulary: int = 0,
        measured: Callable[[], Mapping[str, float]] = dict,
        on_finished: Callable[[Sequence[ScoredRollouts | None]], None] | None = None,
    ) -> None:
        self._measured, self._on_finished = measured, on_finished
        self._config, self._player, self._prompts, self._sampler = config, player, prompts, sampler
        self._sampling, self._filter, self._total_steps = sampling, batch_filter, total_steps
        self._greedy = greedy_sampling(sampling) if greedy_baseline else None
        self._size, self._max_staleness = config.data.train_batch_size, config.trainer.max_staleness
        self._choice = Choice(config)
        self._fitting = Fitting(config, sampling, self._greedy, vocabulary or math.inf, player.plays_episodes)
        self._seeds_of = functools.lru_cache(maxsize=4)(functools.partial(seeds.training_requests, count=self._size))
        self._loop = EventLoop(background=bool(self._max_staleness))
        self._members: dict[int, _Member] = {}
        """number -> a group that is open, or waits to be trained"""
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = self._lowest = sampler.next
        """the next number to be admitted; the lowest that was neither trained nor dropped"""
        self._done = set(sampler.done)
        """higher numbers that were"""
        self._restored = {group.number: group for group in finished}
        """groups of a checkpoint that are to be admitted"""
        self._version = self._places = self._finished = 0
        self._ready = 0
        """members that wait to be trained"""
        self._dropped: list[ScoredRollouts] = []
        self._left_out = 0
        """groups so far, of which others took the places"""
        self._failed: list[RunError] = []
        """errors of groups that were left out since the last step"""
        self._failure: BaseException | None = None
        self._is_slow, self._recurring = False, Recurring()
        self._changed = asyncio.Event()

    def take(self, step: int) -> StepGroups:
        """The groups of ``step``, the one after the last; the weights of version ``step - 1`` have been sent.

        Raises:
            RunError: too many groups failed or were dropped; too many responses have no score; or a response is older
                than ``trainer.max_staleness`` allows.
        """
        start = time.perf_counter()
        taken, generated = self._loop.run(self._take(step))
        ended = time.perf_counter()
        seconds = {"wait": ended - start}
        if not self._max_staleness:
            seconds = {"gen": generated - start, "reward": ended - generated}
        return dataclasses.replace(taken, seconds=seconds)

    def play(
        self, prompts: Sequence[Prompt], seeds: Sequence[int], sampling: SamplingParams, name: str
    ) -> ScoredRollouts:
        """Scored responses to prompts beside the stream, as for an evaluation.

        Raises:
            RunError: too many responses have no score.
        """
        scored = self._loop.run(self._player.play_all(prompts, seeds, sampling, name))
        check_error_rate(scored.results, scored.rollouts.responses, self._config.reward.max_error_rate)
        return scored

    def state(self) -> StreamState:
        """The state between two steps, for a checkpoint."""
        return self._loop.run(self._state())

    def close(self) -> None:
        """End all groups."""
        self._loop.close()

    async def _take(self, step: int) -> tuple[StepGroups, float]:
        """The groups, and when their last response was complete."""
        ahead = min(self._max_staleness, self._total_steps - step)
        self._version, self._places = step - 1, self._size * (1 + ahead) + self._choice.extra
        self._choice.begin()
        self._restored = self._fitting.of(self._restored.values(), step) if self._restored else {}
        self._admit()
        start = time.perf_counter()
        while self._ready < self._size or not (members := self._choice.of(step, self._members.values())):
            self._changed.clear()
            self._check()
            await self._changed.wait()
        generated = max(member.group.generated for member in members)
        self._notice_slow_scores(start, generated, max(member.ended for member in members))
        (dropped, self._dropped), (failed, self._failed) = (self._dropped, []), (self._failed, [])
        self._places -= self._size
        self._ready -= len(members)
        for member in members:
            self._leave(member)
        if self._choice.extra:
            await self._end_others()
        taken = self._of_step(step, members, dropped)
        metrics = {**taken.metrics, **self._measured(), "rollout/failed_groups": float(len(failed))}
        return dataclasses.replace(taken, metrics=metrics), generated

    def _notice_slow_scores(self, start: float, generated: float, ended: float) -> None:
        """Say once that a step, which waits since ``start``, waited for scores for longer than for responses."""
        scoring = ended - max(start, generated)
        if self._max_staleness and not self._is_slow and scoring > max(SLOW, 0.5 * (ended - start)):
            self._is_slow = True
            unscored = sum(member.scored is None and member.group.generated > 0 for member in self._members.values())
            say(
                f"scoring is slower than generation: a step waited {scoring:.1f} s for scores, and {unscored} more "
                "groups wait for theirs; no further group begins before (raise reward.num_workers, or make the scorer "
                "faster)"
            )

    def _admit(self) -> None:
        """Begin groups, as many as there are places."""
        while len(self._members) < self._places and self._failure is None:
            if self._next not in self._done:
                member = self._members[self._next] = self._member(self._next)
                if (group := self._restored.pop(self._next, None)) is not None:
                    member.baseline = group.baseline
                    self._keep(member, group.scored)
                else:
                    task = asyncio.get_running_loop().create_task(self._play(member))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            self._next += 1

    def _member(self, number: int) -> _Member:
        step, place = divmod(number, self._size)
        has_all = self._filter is None and not self._choice.extra
        batch = f"train-{(number - self._left_out) // self._size + 1}" if has_all else "train"
        prompt = self._prompts[self._sampler.prompt(number)]
        group = Group(prompt, self._seeds_of(step + 1)[place], self._sampling, f"train-{number}", batch, number)
        member = _Member(number, None, group)
        group.on_begin = functools.partial(self._begin, weakref.ref(member))  # a cycle would keep all responses
        return member

    def _begin(self, reference: "weakref.ref[_Member]") -> None:
        """Requests of a group are sent."""
        if (member := reference()) is not None and member.version is None:
            member.version = self._version

    async def _play(self, member: _Member) -> None:
        try:
            scored = await self._scored_or_again(member)
            if scored is None:
                self._leave(member)
                self._left_out += 1
                self._admit()
            elif self._is_kept(scored):
                self._keep(member, scored)
            else:
                self._leave(member)
                self._dropped.append(scored)
                self._admit()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # also Stopped, which a signal raises in whatever runs
            self._failure = self._failure or error
        finally:
            self._choice.ended(member.number)
            self._changed.set()

    async def _scored_or_again(self, member: _Member) -> ScoredRollouts | None:
        """The member's responses; None if the second attempt fails, too."""
        for attempt in (1, 2):
            try:
                return await self._scored(member)
            except (LostError, EngineFailsError, NonFiniteError):
                raise  # engines end a run, or are started again, on their own terms
            except RunError as error:
                what = "is left out" if attempt == 2 else "is tried again"
                group = f"group {member.number} (prompt {member.group.prompt.index})"
                self._recurring(what, f"{group} failed and {what}: {error}")
                last = error
        self._failed.append(last)
        return None

    async def _scored(self, member: _Member) -> ScoredRollouts:
        group = member.group
        if self._greedy is None:
            return await self._player.play(group)
        name, batch = f"{group.name}-greedy", f"{group.batch}-greedy"
        greedy = dataclasses.replace(group, sampling=self._greedy, name=name, batch=batch)
        scored, baseline = await all_or_none([self._player.play(group), self._player.play(greedy)])
        member.baseline = baseline
        return dataclasses.replace(scored, greedy_results=baseline.results * group.sampling.n)

    def _is_kept(self, scored: ScoredRollouts) -> bool:
        if self._filter is None:
            return True
        scores, has_score = score_tensors(scored.results)
        groups = torch.zeros(len(scored), dtype=torch.int64)
        return bool(self._filter(FilterInputs(scores, has_score, groups, scored.components())).all())

    def _keep(self, member: _Member, scored: ScoredRollouts) -> None:
        """A group waits to be trained."""
        self._ready += 1
        self._finished += 1
        member.version = min(scored.rollouts.begun_with(), default=self._version)
        member.scored, member.finished, member.ended = scored, self._finished, time.perf_counter()
        if self._on_finished is not None:
            self._on_finished([each.scored for each in itertools.islice(self._members.values(), self._size)])

    def _leave(self, member: _Member) -> None:
        """A group is trained, or dropped."""
        del self._members[member.number]
        self._done.add(member.number)
        while self._lowest in self._done:
            self._done.remove(self._lowest)
            self._lowest += 1

    async def _end_others(self) -> None:
        """End the groups that a step has begun beside its own; they begin again in the next step."""
        self._members.clear()
        self._ready, self._next, ended = 0, self._lowest, set(self._tasks)
        for task in ended:
            task.cancel()
        if ended:
            await asyncio.wait(ended)
        await self._player.idle()

    def _check(self) -> None:
        """Raise what ended the stream."""
        if self._failure is not None:
            raise self._failure
        if len(self._failed) >= self._size:
            raise RunError(
                f"{len(self._failed)} groups failed twice each, as many as a step trains: {self._failed[-1]}"
            ) from self._failed[-1]
        data, dropped = self._config.data, len(self._dropped)
        most = self._config.algorithm.filter_groups.max_num_gen_batches * (data.gen_batch_size or self._size)
        if dropped and dropped + self._size > most:
            self._check_errors(self._dropped)
            raise RunError(
                f"algorithm.filter_groups dropped more than {most - self._size} prompts, and a step of {self._size} "
                f"generates at most {most} (algorithm.filter_groups.max_num_gen_batches): the prompts are too easy or "
                "too hard for the model as it is now (look at the sample rollouts), or raise max_num_gen_batches or "
                "rollout.n"
            )

    def _check_errors(self, groups: Sequence[ScoredRollouts]) -> None:
        results = [result for group in groups for result in group.results]
        responses = [response for group in groups for response in group.rollouts.responses]
        check_error_rate(results, responses, self._config.reward.max_error_rate)

    def _of_step(self, step: int, members: Sequence[_Member], dropped: Sequence[ScoredRollouts]) -> StepGroups:
        groups = [member.scored for member in members if member.scored is not None]
        self._check_errors([*groups, *dropped])
        if self._greedy is not None:
            self._check_errors([member.baseline for member in members if member.baseline is not None])
        scored = ScoredRollouts.join(groups)
        metrics = {**self._staleness(step, scored), **agent_metrics(scored.rollouts.episodes or ())}
        metrics["training/epoch"] = float(self._sampler.epoch_of(members[-1].number + 1))
        if self._filter is not None:
            prompts = len(members) + len(dropped)
            size = self._config.data.gen_batch_size or self._size
            metrics |= {
                "training/num_gen_batches": float(-(-prompts // size)),
                "training/num_gen_prompts": float(prompts),
            }
        background = {}
        if self._max_staleness:
            begun, ended = min(each.started for each in members), max(each.ended for each in members)
            generated = max(each.group.generated for each in members)
            background = {"gen": generated - begun, "reward": ended - generated}
        return StepGroups(scored, metrics, {}, background)

    async def _state(self) -> StreamState:
        finished = [
            FinishedGroup(each.number, each.group.prompt, each.scored, each.baseline)
            for each in self._members.values()
            if each.scored is not None
        ]
        return StreamState(self._sampler.state_at(self._lowest, self._done), [*finished, *self._restored.values()])

    def _staleness(self, step: int, scored: ScoredRollouts) -> dict[str, float]:
        lags = scored.staleness(step)
        if max(lags, default=0) > self._max_staleness:
            raise RunError(
                f"a response started with weights of version {step - 1 - max(lags)}, {max(lags)} updates older than "
                f"the policy's; the limit is trainer.max_staleness={self._max_staleness}"
            )
        return {
            "training/staleness/mean": sum(lags) / max(1, len(lags)),
            "training/staleness/max": float(max(lags, default=0)),
            "training/staleness/token_mean": scored.token_staleness(step),
        }
