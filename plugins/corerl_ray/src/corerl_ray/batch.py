"""The rows of each step in shards of whole groups, each in a process; the controller has numbers and handles."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from corerl.contracts.dispatch import Future
from corerl.contracts.experience import RowNumbers
from corerl.contracts.losses import Measure, values
from corerl.contracts.rollout_correctors import PartwiseCorrector, RolloutCorrector
from corerl.contracts.runtimes import Role, Runtime
from corerl.errors import NonFiniteError
from corerl.terminal import say
from corerl_ray.group import Group, call, keep, pending
from corerl_ray.kept import KeptOutputs, KeptRows, KeptShare, placed
from corerl_ray.packed import Packed
from corerl_ray.runtime import RayRuntime
from corerl_torch.shards.cut import Cut, add_measures
from corerl_torch.shards.readers import in_one_process, reader_by_floats, shards_of
from corerl_torch.shards.worker import Shard

KEY = "rollout.num_workers"


def make_batch(
    plan: Any, runtime: Runtime, folder: Path, models: Any, corrector: RolloutCorrector, annotators: Sequence[Any]
) -> "ShardedBatch | None":
    """The batch of a run under this runtime with ``rollout.num_workers``; None: the controller has the rows."""
    if not isinstance(runtime, RayRuntime):
        return None
    config = plan.config
    shards, line = shards_of(config, plan.parts, corrector, annotators)
    if line:
        say(line)
    if not shards:
        return None
    role = Role("batch", KEY, "batch", distributed=False, workers=shards)
    group = cast(Group, runtime.spawn(role, Shard, config, folder, models.shape))
    return ShardedBatch(group, corrector, config.trainer.log_rollouts_tokens)


class Begins:
    """A method that begins calls: it waits for their result, and its ``submit`` does not."""

    def __init__(self, begin: Callable[..., Future]) -> None:
        self._begin = begin

    def __get__(self, batch: "ShardedBatch", kind: type) -> "Begun":
        return Begun(functools.partial(self._begin, batch))


@dataclass(frozen=True)
class Begun:
    """A bound method of :class:`Begins`."""

    submit: Callable[..., Future]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.submit(*args, **keywords).result()


class ShardedBatch:
    """Called as :class:`corerl.trainer.batch.Batch`; rows are handles (:class:`corerl_ray.kept.KeptRows`).

    Args:
        group: the shards; each is of several, and none a replica: the loss of one ends the run.
        corrector: checks the measures of the whole step.
        token_rows: ``trainer.log_rollouts_tokens``.
    """

    def __init__(self, group: Group, corrector: RolloutCorrector, token_rows: int) -> None:
        self._group, self._corrector, self._token_rows = group, corrector, token_rows
        self._most = len(group.members)
        self._cut: Cut
        self._scored: Any = None

    @Begins
    def take(self, scored: Any) -> Future:
        self._scored, self._cut = scored, Cut.of(scored, self._most)
        parts = map(Packed.of, self._cut.scored(scored))
        return self._keep("take_part", list(zip(parts, self._cut.parts, strict=True)))

    @Begins
    def put(self, role: str, outputs: KeptOutputs | None) -> Future:
        of_shards = [None if outputs is None else outputs.of(rows) for rows in self._cut.rows]
        return self._call("put", [(role, own) for own in of_shards], lambda results: None)

    @Begins
    def estimate(self, step: int, lag: int, penalty: None = None) -> Future:
        cut = self._cut

        def join(results: Sequence[tuple[RowNumbers, Mapping[str, Measure], list[str]]]) -> RowNumbers:
            numbers, measures, lines = zip(*results, strict=True)
            _say(lines)
            self._check(measures, lag)
            return cut.numbers(numbers)

        return self._call("estimate_part", self._alike(step, lag), join)

    @Begins
    def compare(self, lag: int) -> Future:
        return self._call("compare_rows", self._alike(lag), lambda measures: self._check(measures, lag))

    def _check(self, measures: Sequence[Mapping[str, Measure]], lag: int) -> None:
        if isinstance(self._corrector, PartwiseCorrector):
            self._corrector.check(add_measures(measures)[0], lag)

    @Begins
    def measure(self) -> Future:
        cut, scored = self._cut, self._scored

        def join(parts: list[Any]) -> dict[str, float]:
            sums, floats = add_measures(parts)
            if floats and len(cut.parts) > 1:
                floats = self._floats_of_all(cut, scored, [*floats])
            return values({**sums, **floats})

        return self._call("measure_part", self._alike(), join)

    @Begins
    def rows(self) -> Future:
        return self._keep("rows", self._alike())

    @Begins
    def correct(self, *, drops: bool) -> Future:
        return self._keep("correct", self._alike(), drops=drops)

    @Begins
    def refuse(self, step: int, error: NonFiniteError, rows: Sequence[int]) -> Future:
        args = [(step, error, own) if own else None for own in self._cut.shares(rows)]
        return self._call("refuse_part", args, _say)

    @Begins
    def write_rollouts(self, path: Path) -> Future:
        """On the first shard, which gets the texts of all."""
        cut, first = self._cut, self._group.members[0]
        if len(cut.parts) == 1:
            return self._call("write_rollouts", [(path,)], _only)
        counts, rows = cut.first(self._token_rows)
        calls, references = self._kept("first_rows", [(count,) for count in counts])
        share = KeptShare(references, *placed(rows), trims=True) if any(counts) else references[0]
        writing = call(first, "write_whole", (path, Packed.of(self._scored), share), {})
        return pending(self._group, "write_rollouts", [*calls, writing], lambda results: results[-1])

    @Begins
    def end(self) -> Future:
        ending = self._call("end", self._alike(), lambda results: None)
        self._scored = None
        return ending

    def _alike(self, *args: Any) -> list[tuple[Any, ...]]:
        """The same arguments for all shards of the step."""
        return [args for _ in self._cut.parts]

    def _call(self, name: str, args: Sequence[tuple[Any, ...] | None], join: Callable[[list[Any]], Any]) -> "Future":
        """Begin a call on each shard of the step, with its arguments; None: it is not called."""
        given = [(shard, own) for shard, own in enumerate(args) if own is not None]
        calls = [call(self._group.members[shard], name, own, {}) for shard, own in given]
        raising = functools.partial(_raise, self._cut, [shard for shard, _ in given])
        return pending(self._group, name, calls, lambda results: join(raising(results)))

    def _kept(self, name: str, args: Sequence[tuple[Any, ...]] = (), **keywords: Any) -> tuple[list[Any], list[Any]]:
        """Begin a call on each shard whose result stays there; the calls, and references of the results."""
        args = args or self._alike()
        begun = [keep(member, name, own, keywords) for member, own in zip(self._group.members, args, strict=False)]
        return [own for own, _ in begun], [reference for _, reference in begun]

    def _keep(self, name: str, args: Sequence[tuple[Any, ...]], **keywords: Any) -> Future:
        """Begin a call on each shard; its result is a handle of all rows."""
        cut = self._cut
        calls, references = self._kept(name, args, **keywords)
        return pending(
            self._group, name, calls, lambda results: KeptRows.of(references, cut.numbers(results), cut.rows)
        )

    def _floats_of_all(self, cut: Cut, scored: Any, names: Sequence[str]) -> dict[str, float]:
        """Metrics of plugins that are no measures: of all rows in one process, as in all later steps."""
        calls, references = self._kept("rows_for_floats")
        args = KeptShare(references, *placed(cut.rows)), scored.results, scored.rollouts.truncated
        asked = call(self._group.members[0], "measure_whole", args, {})
        found = pending(self._group, "measure_whole", [*calls, asked], lambda results: results[-1]).result()
        say(in_one_process([reader_by_floats(names)], "each further step"))
        self._most = 1
        return add_measures([found])[1]


def _raise(cut: Cut, shards: Sequence[int], results: list[Any]) -> list[Any]:
    """The results; an error's rows are those of the step.

    Raises:
        NonFiniteError: that of a shard.
    """
    for shard, result in zip(shards, results, strict=True):
        if isinstance(result, NonFiniteError):
            raise NonFiniteError(str(result), cut.rows[shard][list(result.rows)].tolist())
    return results


def _only(results: Sequence[Any]) -> Any:
    return results[0]


def _say(lines: Sequence[Sequence[str]]) -> None:
    for each in lines:
        for line in each:
            say(line)
