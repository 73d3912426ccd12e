from corerl.telemetry.metrics_log import MetricsLog, read_metrics


class Recorder:
    def __init__(self):
        self.seen, self.closed = [], 0

    def log(self, metrics, step):
        self.seen.append((step, dict(metrics)))

    def close(self):
        self.closed += 1


def test_records_reach_the_file_and_every_tracker(tmp_path):
    trackers = [Recorder(), Recorder()]
    log = MetricsLog(tmp_path / "metrics.jsonl", trackers)
    log.write({"a": 1.0}, step=0)
    log.write({"a": 2.0}, step=1)
    log.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.0}]
    assert [tracker.seen for tracker in trackers] == [[(0, {"a": 1.0}), (1, {"a": 2.0})]] * 2
    assert [tracker.closed for tracker in trackers] == [1, 1]


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 3, "a"')
    MetricsLog(path, [], last_step=1).close()
    assert read_metrics(path) == [{"step": 1, "a": 1}]
