import contextlib
import json
import math
import re
import threading
import time
from pathlib import Path

import pytest

from corerl.errors import RequestError, SaveError
from corerl.telemetry.metrics_log import MetricsLog, read_metrics

FULL = Path("/dev/full")


class Recorder:
    def __init__(self, run_id=None):
        self.seen, self.closed, self.opened_with = [], 0, []
        if run_id is not None:
            self.run_id = run_id

    def open(self, run_id):
        self.opened_with.append(run_id)
        return self

    def log(self, metrics, step):
        self.seen.append((step, dict(metrics)))

    def close(self):
        self.closed += 1


class TableRecorder(Recorder):
    def log_samples(self, step, columns, rows):
        self.seen.append((step, columns, rows))


class Failing(Recorder):
    def log(self, metrics, step):
        super().log(metrics, step)
        if step != 2:
            raise ConnectionError("no route to host\nmore of it")


class Hanging(Recorder):
    def __init__(self):
        super().__init__()
        self.go_on = threading.Event()

    def log(self, metrics, step):
        super().log(metrics, step)
        self.go_on.wait(20)


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_records_reach_the_file_and_every_tracker(tmp_path):
    trackers = [Recorder(), Recorder()]
    log = MetricsLog(tmp_path / "metrics.jsonl", {str(number): each.open for number, each in enumerate(trackers)})
    log.write({"a": 1.0}, step=0)
    log.write({"a": 2.0}, step=1)
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.0}]
    assert [tracker.seen for tracker in trackers] == [[(0, {"a": 1.0}), (1, {"a": 2.0})]] * 2
    assert [tracker.closed for tracker in trackers] == [1, 1]
    assert [tracker.opened_with for tracker in trackers] == [[""]] * 2


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a"')
    MetricsLog(path, {}, last_step=1).close()
    assert read_metrics(path) == [{"step": 1, "a": 1}]


@contextlib.contextmanager
def full_disk(log):
    """What is written within meets the error of a full disk, from the kernel itself."""
    file = log._file
    with FULL.open("ab", buffering=0) as log._file:
        yield
    log._file = file


def test_what_a_full_disk_does_not_take_is_written_when_there_is_room_and_told_once(tmp_path, capsys):
    log = MetricsLog(tmp_path / "metrics.jsonl", {})
    log.write({"a": 1.0}, 1)
    with full_disk(log):
        log.write({"a": 2.0}, 2)
        log.write({"a": 3.0}, 3)
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1]
    log.write({"a": 4.0}, 4)
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": step, "a": float(step)} for step in (1, 2, 3, 4)]
    said = (
        r"step 2: /dev/full cannot be written \(No space left on device; (.*) has [\d,]+ bytes free\): steps wait.*\n"
    )
    assert re.fullmatch(said, capsys.readouterr().err)[1] == str(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_metrics_that_are_lost_fail_the_run_unless_it_has_failed_already(tmp_path, capsys):
    with (
        pytest.raises(SaveError, match=r"the metrics of 1 steps could not be written to /dev/full: .*No space left"),
        MetricsLog(tmp_path / "metrics.jsonl", {}) as log,
    ):
        log._file = FULL.open("ab", buffering=0)
        log.write({"a": 2.0}, 2)
    with pytest.raises(KeyError), MetricsLog(tmp_path / "metrics.jsonl", {}) as log:
        log._file = FULL.open("ab", buffering=0)
        log.write({"a": 2.0}, 2)
        raise KeyError("the run's own")
    assert "the metrics of 1 steps could not be written" in capsys.readouterr().err


def test_tables_go_to_the_trackers_that_have_some(tmp_path):
    plain, tables = Recorder(), TableRecorder()
    log = MetricsLog(tmp_path / "metrics.jsonl", {"plain": plain.open, "tables": tables.open})
    log.write_samples(3, ["response"], [["x"]])
    log.write_samples(4, ["response"], [])
    log.close()
    assert (plain.seen, tables.seen) == ([], [(3, ["response"], [["x"]])])


def test_run_ids_survive_a_resume_also_of_a_tracker_that_cannot_be_opened_then(tmp_path, capsys):
    first, other = Recorder("id-1"), Recorder("id-2")
    log = MetricsLog(tmp_path / "metrics.jsonl", {"first": first.open, "other": other.open, "plain": Recorder().open})
    wait_for(lambda: log.state() == {"first": "id-1", "other": "id-2"})
    state = log.state()
    log.close()

    def refuse(run_id):
        raise OSError("the server is away")

    again = Recorder("id-1")
    log = MetricsLog(tmp_path / "metrics.jsonl", {"first": again.open, "other": refuse}, last_step=7, state=state)
    log.close()
    assert again.opened_with == ["id-1"]
    assert log.state() == state
    assert "tracker 'other': OSError: the server is away" in capsys.readouterr().err


def test_a_tracker_that_fails_is_named_once_and_tried_again(tmp_path, capsys):
    failing, other = Failing(), Recorder()
    log = MetricsLog(tmp_path / "metrics.jsonl", {"failing": failing.open, "other": other.open})
    for step in range(4):
        log.write({"a": 1.0}, step)
    log.close()
    assert [step for step, _ in failing.seen] == [step for step, _ in other.seen] == [0, 1, 2, 3]
    assert (failing.closed, len(read_metrics(tmp_path / "metrics.jsonl"))) == (1, 4)
    assert capsys.readouterr().err == (
        "tracker 'failing': ConnectionError: no route to host; the run goes on, and all metrics are in metrics.jsonl\n"
    )


def test_a_tracker_that_hangs_holds_up_nothing_and_gets_no_more(tmp_path, capsys):
    hanging, other = Hanging(), Recorder()
    log = MetricsLog(tmp_path / "metrics.jsonl", {"hanging": hanging.open, "other": other.open}, timeout=0.1)
    start = time.monotonic()
    log.write({"a": 1.0}, 0)
    wait_for(lambda: hanging.seen)
    time.sleep(0.15)
    for step in range(1, 4):
        log.write({"a": 1.0}, step)
    log.close()
    assert time.monotonic() - start < 30
    assert [step for step, _ in hanging.seen] == [0]
    assert [step for step, _ in other.seen] == [0, 1, 2, 3]
    assert capsys.readouterr().err == (
        "tracker 'hanging': has not answered for 0.1 s (tracking.timeout) and gets no more metrics; "
        "the run goes on, and all metrics are in metrics.jsonl\n"
    )
    hanging.go_on.set()  # what hung ends at last: it closes, and takes none of the rest
    wait_for(lambda: hanging.closed)
    assert len(hanging.seen) == 1


def test_the_end_of_a_run_waits_for_its_trackers_only_so_long(tmp_path, capsys):
    hanging = [Hanging(), Hanging()]
    log = MetricsLog(tmp_path / "metrics.jsonl", {str(n): each.open for n, each in enumerate(hanging)}, timeout=0.3)
    log.write({"a": 1.0}, 0)
    start = time.monotonic()
    log.close()
    assert time.monotonic() - start < 30
    assert capsys.readouterr().err.count("was not done 0.3 s after the run (tracking.timeout)") == 2
    for each in hanging:
        each.go_on.set()


def test_a_tracker_that_cannot_keep_up_is_given_up_before_the_queue_fills_the_memory(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("corerl.telemetry.tracker_thread.MOST_WAITING", 5)
    hanging = Hanging()
    log = MetricsLog(tmp_path / "metrics.jsonl", {"slow": hanging.open})
    log.write({"a": 1.0}, 0)
    wait_for(lambda: hanging.seen)
    for step in range(1, 8):
        log.write({"a": 1.0}, step)
    hanging.go_on.set()
    log.close()
    assert capsys.readouterr().err.startswith("tracker 'slow': is 5 calls behind and gets no more metrics")
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 8


@pytest.mark.parametrize("value", ['"1e400"', "[1]", "1" + "0" * 400])
def test_metrics_that_are_no_numbers_are_damage(tmp_path: Path, value: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 0, "a": {value}}}\n')
    with pytest.raises(RequestError, match=r"metrics\.jsonl is damaged"):
        read_metrics(tmp_path / "metrics.jsonl")


def test_a_number_that_is_not_finite_is_null_in_the_file_and_itself_for_trackers(tmp_path):
    path, tracker = tmp_path / "metrics.jsonl", Recorder()
    values = {"agent/turns": math.nan, "largest": math.inf, "least": -math.inf, "loss": 0.5}
    with MetricsLog(path, {"one": tracker.open}) as log:
        log.write(values, step=1)
    with MetricsLog(path, {}, last_step=1) as log:  # resumed
        log.write({"loss": 0.25}, step=2)
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())
    assert first == {"step": 1, "agent/turns": None, "largest": None, "least": None, "loss": 0.5}
    assert second == {"step": 2, "loss": 0.25}
    [(step, seen)] = tracker.seen
    assert (step, repr(seen)) == (1, repr(values))
    assert math.isnan(read_metrics(path)[0]["agent/turns"])
