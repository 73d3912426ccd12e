"""The timeline of a step's episodes: a Chrome trace, for Perfetto (ui.perfetto.dev) and the report.

A response without an agent is an episode of one request. A process of the trace is a group, a thread is an episode.
Slices: ``tool``, ``waiting`` and ``scoring`` of an episode, and ``generating`` for each request; requests that overlap
are in further threads of the episode. A counter has the number of all the step's episodes in each phase.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corerl.batch.rollouts import Episode, RequestRecord, Rollouts
from corerl.batch.times import KINDS
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.files import atomic_path
from corerl_tools.episodes.columns import shortened
from corerl_tools.episodes.times import Phase, phases

FOLDER = "timeline"
MOST_EPISODES = 512
MOST_EVENTS = 50_000
"""of episodes; about 8 MB"""
MOST_POINTS = 2000
"""of the counter"""
LANES = 1000
"""threads of an episode, at most"""
COUNTER = "episodes"
FIRST = 2
"""the process of group 0; process 1 has the counter"""

Event = dict[str, Any]


@dataclass(frozen=True)
class _Played:
    """An episode with times; ``row``: its place in the step; ``start``: seconds since the first episode began."""

    row: int
    group: int
    start: float
    episode: Episode
    phases: list[Phase]

    @property
    def end(self) -> float:
        return self.start + (self.phases[-1].end if self.phases else 0.0)


def path_of(samples: Path) -> Path:
    """The timeline beside sample rollouts.

    >>> path_of(Path("run/rollouts/step_000010.parquet")).as_posix()
    'run/timeline/step_000010.json'
    """
    return samples.parent.parent / FOLDER / f"{samples.stem}.json"


def write_timeline(path: Path, rollouts: Rollouts, results: Sequence[RewardResult]) -> bool:
    """Write the timeline ``step_N.json`` of a step's episodes; False, and no file, if no episode has times.

    If there are too many episodes or events, the file has those that ended last; ``otherData`` has the numbers.
    """
    trace = timeline(int(path.stem.removeprefix("step_")), rollouts, results)
    if trace is None:
        return False
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(trace, separators=(",", ":"), allow_nan=False), encoding="utf-8")
    return True


def timeline(step: int, rollouts: Rollouts, results: Sequence[RewardResult]) -> dict[str, Any] | None:
    """The content of :func:`write_timeline`'s file."""
    episodes = _played(rollouts)
    if not episodes:
        return None
    kept = _chosen(episodes)
    events = [_counter(*point) for point in _counts(episodes)]
    events.append(_name("process_name", 1, 1, f"step {step}"))
    for group in dict.fromkeys(each.group for each in kept):
        events.append(_name("process_name", group + FIRST, 1, f"group {group}"))
    for number, each in enumerate(kept):
        events += _events(each, number, results[each.row].score)
    facts = {
        "step": step,
        "began": min(each.episode.seconds["began"] for each in episodes),
        "episodes": len(kept),
        "episodes_of_step": len(rollouts),
        "left_out": "none" if len(kept) == len(episodes) else "the episodes that ended first",
    }
    return {"displayTimeUnit": "ms", "otherData": facts, "traceEvents": events}


def _episodes(rollouts: Rollouts) -> Sequence[Episode]:
    """One of each response."""
    if rollouts.episodes is not None:
        return rollouts.episodes
    clocks = rollouts.seconds or [{}] * len(rollouts)
    return [
        _of_one_turn(len(prompt.token_ids), completion, seconds) if seconds else Episode([])
        for prompt, completion, seconds in zip(rollouts.prompts, rollouts.completions, clocks, strict=True)
    ]


def _of_one_turn(read: int, completion: Completion, seconds: Mapping[str, float]) -> Episode:
    sent, answered = seconds["sent"], seconds["answered"]
    request = RequestRecord(0, -1, read, len(completion.token_ids), 0.0, sent, answered, completion.finish_reason)
    return Episode([], requests=[request], seconds={**seconds, "played": answered})


def _played(rollouts: Rollouts) -> list[_Played]:
    timed = [(row, each) for row, each in enumerate(_episodes(rollouts)) if "began" in each.seconds]
    first = min((each.seconds["began"] for _, each in timed), default=0.0)
    return [
        _Played(
            row,
            rollouts.group_ids[row],
            each.seconds["began"] - first,
            each,
            phases(each.requests, each.seconds),
        )
        for row, each in timed
    ]


def _chosen(episodes: Sequence[_Played]) -> list[_Played]:
    """Those that ended last, as many as the file may have, in the order of the step."""
    kept, events = list[_Played](), 0
    for each in sorted(episodes, key=lambda each: -each.end)[:MOST_EPISODES]:
        events += 3 + len(each.episode.requests) + len(each.phases)
        if kept and events > MOST_EVENTS:
            break
        kept.append(each)
    return sorted(kept, key=lambda each: each.row)


def _counts(episodes: Sequence[_Played]) -> list[tuple[float, Counter[str]]]:
    """(seconds, episodes of each kind) at moments in ascending order, of many moments some."""
    changes = sorted(
        (each.start + at, kind, change)
        for each in episodes
        for phase in each.phases
        for at, kind, change in ((phase.start, phase.kind, 1), (phase.end, phase.kind, -1))
    )
    every = -(-len(changes) // MOST_POINTS)
    points, now = dict[float, Counter[str]](), Counter[str]()
    for place, (at, kind, change) in enumerate(changes, 1):
        now[kind] += change
        if at in points or place % every == 0 or place == len(changes):
            points[at] = now.copy()
    return list(points.items())


def _events(each: _Played, number: int, score: float | None) -> Iterator[Event]:
    group, thread = each.group + FIRST, (number + 1) * LANES
    facts: dict[str, Any] = {"row": each.row, "score": score, "requests": len(each.episode.requests)}
    name = f"episode {each.row}"
    if each.episode.error is not None:
        facts["error"] = shortened(each.episode.error, 300)
    yield _name("thread_name", group, thread, name)
    yield _sort(group, thread)
    for phase in each.phases:
        if phase.kind != "generating":
            yield _slice(phase.kind, group, thread, each.start + phase.start, phase.seconds, facts)
    requests = each.episode.requests[: MOST_EVENTS - len(each.phases)]
    lanes = _lanes(requests)
    for lane in range(1, max(lanes, default=0) + 1):
        yield _name("thread_name", group, thread + lane, f"{name}, parallel {lane}")
    for place, (lane, request) in enumerate(zip(lanes, requests, strict=True)):
        of_request = {
            **{"row": each.row, "request": place, "continues": request.parent, "read": request.read},
            **{"sampled": request.sampled, "ended by": request.finish_reason},
            "waited_ms": round(1000 * (request.sent - request.asked), 3),
        }
        duration = request.answered - request.sent
        yield _slice("generating", group, thread + lane, each.start + request.sent, duration, of_request)


def _lanes(requests: Sequence[RequestRecord]) -> list[int]:
    """For each request the lowest lane that is free; requests of one lane do not overlap."""
    lanes, free, busy = [0] * len(requests), list[int](), list[tuple[float, int]]()
    for number in sorted(range(len(requests)), key=lambda number: requests[number].sent):
        while busy and busy[0][0] <= requests[number].sent:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        lanes[number] = min(lane, LANES - 1)
        heapq.heappush(busy, (requests[number].answered, lane))
    return lanes


def _slice(kind: str, process: int, thread: int, start: float, seconds: float, facts: dict[str, Any]) -> Event:
    times = {"ts": _micro(start), "dur": _micro(seconds)}
    return {"ph": "X", "name": kind, "cat": kind, "pid": process, "tid": thread, **times, "args": facts}


def _counter(at: float, counts: Counter[str]) -> Event:
    values = {kind: counts[kind] for kind in KINDS}
    return {"ph": "C", "name": COUNTER, "pid": 1, "tid": 1, "ts": _micro(at), "args": values}


def _name(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _sort(process: int, thread: int) -> Event:
    return {"ph": "M", "name": "thread_sort_index", "pid": process, "tid": thread, "args": {"sort_index": thread}}


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 1)
