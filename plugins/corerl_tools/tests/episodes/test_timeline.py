"""The timeline of a step, and its form for the page."""

import json
from collections import Counter
from pathlib import Path

import pytest

from corerl.batch.rollouts import Episode, RequestRecord, Rollouts
from corerl.contracts.reward_managers import RewardResult
from corerl.contracts.rollout_backends import Completion
from corerl.data.prompts import Prompt
from corerl.errors import RequestError
from corerl_tools.episodes import timeline as module
from corerl_tools.episodes.timeline import path_of, timeline, write_timeline
from corerl_tools.report.timelines import of_trace, read_timelines


def step_of(*episodes):
    """Rollouts of these episodes, two a group."""
    count = len(episodes)
    prompts = [Prompt(0, (1,), [], "x", "", {})] * count
    done = [Completion([1], [0.0], "stop", 0)] * count
    return Rollouts(prompts, done, [""] * count, [row // 2 for row in range(count)], list(episodes))


def episode(began, *of_requests, played, scored=0.0, error=None):
    requests = [RequestRecord(number, -1, 5, 2, *times, "stop") for number, times in enumerate(of_requests)]
    return Episode([True], requests=requests, seconds={"began": began, "played": played, "scored": scored}, error=error)


STEP = step_of(
    episode(100.0, (0.0, 1.0, 2.0), (4.0, 4.0, 5.0), played=6.0, scored=0.5),
    episode(100.5, (0.0, 0.5, 9.5), (1.0, 1.0, 3.0), (2.0, 2.0, 4.0), (5.0, 5.0, 6.0), played=9.5, error="late"),
    Episode([True]),  # of a plugin without a clock
)
RESULTS = [RewardResult(1.0), RewardResult(None, error="late"), RewardResult(0.0)]


def slices(trace, thread):
    return [
        (each["name"], each["ts"] / 1e6, each["dur"] / 1e6)
        for each in trace["traceEvents"]
        if each["ph"] == "X" and each["tid"] == thread
    ]


def names(trace, kind):
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in trace["traceEvents"] if each["name"] == kind}


def test_slices_are_the_phases_of_an_episode_since_the_first_one_began():
    trace = timeline(7, STEP, RESULTS)
    assert sorted(slices(trace, 1000), key=lambda each: each[1]) == [
        *(("waiting", 0.0, 1.0), ("generating", 1.0, 1.0), ("tool", 2.0, 2.0), ("generating", 4.0, 1.0)),
        *(("tool", 5.0, 1.0), ("scoring", 6.0, 0.5)),
    ]
    assert slices(trace, 2000)[0] == ("waiting", 0.5, 0.5)


def test_overlapping_requests_are_in_threads_of_their_own():
    trace = timeline(7, STEP, RESULTS)
    assert slices(trace, 2000)[1:] == [("generating", 1.0, 9.0)]
    assert slices(trace, 2001) == [("generating", 1.5, 2.0), ("generating", 5.5, 1.0)]
    assert slices(trace, 2002) == [("generating", 2.5, 2.0)]
    assert names(trace, "thread_name")[2, 2002] == "episode 1, parallel 2"


def test_groups_are_processes_with_names():
    trace = timeline(7, step_of(*STEP.episodes[:2], STEP.episodes[0]), RESULTS)
    assert names(trace, "process_name") == {(1, 1): "step 7", (2, 1): "group 0", (3, 1): "group 1"}


def test_the_counter_has_all_episodes_at_work():
    points = [each for each in timeline(7, STEP, RESULTS)["traceEvents"] if each["ph"] == "C"]
    at = {each["ts"] / 1e6: each["args"] for each in points}
    assert at[0.5] == {"waiting": 2, "generating": 0, "tool": 0, "scoring": 0}
    assert at[2.0] == {"waiting": 0, "generating": 1, "tool": 1, "scoring": 0}
    assert at[6.0] == {"waiting": 0, "generating": 1, "tool": 0, "scoring": 1}
    assert set(at[10.0].values()) == {0}
    assert list(at) == sorted(at)


def test_a_request_says_how_long_it_waited_and_what_it_continues():
    trace = timeline(7, STEP, RESULTS)
    request = next(each for each in trace["traceEvents"] if each["name"] == "generating")
    expected = {
        "row": 0,
        "request": 0,
        "continues": -1,
        "read": 5,
        "sampled": 2,
        "ended by": "stop",
        "waited_ms": 1000.0,
    }
    assert request["args"] == expected
    facts = {each["args"]["row"]: each["args"] for each in trace["traceEvents"] if each["name"] == "waiting"}
    assert facts[0] == {"row": 0, "score": 1.0, "requests": 2}
    assert facts[1] == {"row": 1, "score": None, "requests": 4, "error": "late"}


def test_a_large_step_keeps_the_episodes_that_ended_last_and_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST_EPISODES", 4)
    episodes = [episode(100.0, (0.0, 0.0, end), played=end) for end in (3.0, 9.0, 1.0, 8.0, 7.0, 2.0)]
    trace = timeline(7, step_of(*episodes), [RewardResult(0.0)] * 6)
    kept = {each["args"]["row"] for each in trace["traceEvents"] if each["ph"] == "X"}
    assert kept == {0, 1, 3, 4}
    assert trace["otherData"] | {"began": None} == {
        **{"step": 7, "began": None, "episodes": 4, "episodes_of_step": 6},
        "left_out": "the episodes that ended first",
    }
    first = next(each for each in trace["traceEvents"] if each["ph"] == "C")
    assert first["args"]["generating"] == 6


def test_the_file_is_bounded_in_size(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST_EVENTS", 5000)
    times = [(place / 1000, place / 1000 + 0.0001, place / 1000 + 0.0005) for place in range(1000)]
    one = episode(100.0, *times, played=1.0, scored=0.1)
    endless = episode(100.0, *times * 7, played=2.0, error="e" * 10**6)
    path = tmp_path / "run" / "timeline" / "step_000012.json"
    assert write_timeline(path, step_of(*[one] * 30, endless), [RewardResult(0.0)] * 31)
    assert path.stat().st_size < 2_000_000
    trace = json.loads(path.read_text())
    assert len(trace["traceEvents"]) < module.MOST_EVENTS + module.MOST_POINTS + 1000
    assert trace["otherData"]["left_out"] == "the episodes that ended first"
    assert list(path.parent.iterdir()) == [path]


def test_a_response_without_an_agent_is_an_episode_of_one_request(tmp_path):
    prompts, done = [Prompt(0, (1, 2), [], "x", "", {})] * 3, [Completion([1, 4, 5], [0.0] * 3, "length", 0)] * 3
    clocks = [{"began": 100.0 + row, "sent": 0.5, "answered": 2.0, "scored": 0.25} for row in (0, 1)]
    rollouts = Rollouts(prompts, done, [""] * 3, [0, 0, 1], None, [*clocks, {}])  # the last one is of a checkpoint
    trace = timeline(7, rollouts, RESULTS)
    assert slices(trace, 2000) == [("waiting", 1.0, 0.5), ("scoring", 3.0, 0.25), ("generating", 1.5, 1.5)]
    request = next(each["args"] for each in trace["traceEvents"] if each["name"] == "generating")
    assert (request["read"], request["sampled"], request["ended by"]) == (2, 3, "length")
    assert trace["otherData"]["episodes"] == 2 and of_trace(7, trace)["episodes"][1]["group"] == 0
    assert write_timeline(tmp_path / "timeline" / "step_000001.json", rollouts, RESULTS)


def test_without_clocks_there_is_no_file(tmp_path):
    path = tmp_path / "timeline" / "step_000001.json"
    assert not write_timeline(path, step_of(Episode([True])), RESULTS)
    assert not write_timeline(path, Rollouts([], [], [], []), [])
    assert not path.parent.exists()


def test_the_timeline_lies_beside_the_samples():
    assert path_of(Path("run/rollouts/step_000010.parquet")) == Path("run/timeline/step_000010.json")


def test_the_page_has_each_slice_with_its_kind_and_its_request(tmp_path):
    write_timeline(tmp_path / "timeline" / "step_000007.json", STEP, RESULTS)
    [[found]] = read_timelines([tmp_path])
    first, second = found["episodes"]
    assert (found["step"], found["of"], found["left_out"]) == (7, 3, "none")
    assert (first["row"], first["group"], first["score"], first["error"]) == (0, 0, 1.0, None)
    assert (second["score"], second["error"]) == (None, "late")
    assert [1, 1000.0, 1000.0, 0, -1, 5, 2, 1000.0] in first["slices"]
    assert Counter(kind for kind, *_ in second["slices"]) == {0: 1, 1: 4}
    assert found["counts"][0] == [0.0, 1, 0, 0, 0] and found["counts"][-1] == [10_000.0, 0, 0, 0, 0]


def test_runs_share_the_timelines_of_a_page(tmp_path):
    for step in range(1, 31):
        write_timeline(tmp_path / "timeline" / f"step_{step:06d}.json", STEP, RESULTS)
    assert [each["step"] for each in read_timelines([tmp_path], 4)[0]] == [1, 11, 20, 30]
    assert [len(each) for each in read_timelines([tmp_path, tmp_path / "none"], 4)] == [2, 0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"traceEvents": []}',
        '{"traceEvents": [{"ph": "X"}], "otherData": {"episodes_of_step": 1, "left_out": ""}}',
        '{"traceEvents": [{"ph": "C", "name": "episodes", "ts": 1e999, "args": {}}], "otherData": {}}',
        '{"traceEvents": 7, "otherData": {}}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:40],
)
def test_a_damaged_timeline_is_an_error_in_words(tmp_path, text):
    (tmp_path / "timeline").mkdir()
    (tmp_path / "timeline" / "step_000001.json").write_text(text)
    with pytest.raises(RequestError, match=r"step_000001\.json is damaged, or not of CoreRL"):
        read_timelines([tmp_path])


@pytest.mark.parametrize("change", [{"ts": "1"}, {"dur": float("nan")}, {"tid": "</script>"}, {"name": "<b>"}])
def test_values_of_other_types_do_not_reach_the_page(change):
    trace = timeline(7, STEP, RESULTS)
    next(each for each in trace["traceEvents"] if each["ph"] == "X").update(change)
    with pytest.raises(ValueError):
        of_trace(7, trace)
