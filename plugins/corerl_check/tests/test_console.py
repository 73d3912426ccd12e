from corerl.contracts.trackers import TrackedRun
from corerl_check.console import ConsoleTracker, summary


def tracker(total_steps):
    return ConsoleTracker(TrackedRun("p", "e", None, {}, total_steps))


def test_the_line_shows_what_the_metrics_hold():
    metrics = {"critic/score/mean": 0.5, "response_length/mean": 12.34, "actor/ppo_kl": 0.001, "perf/throughput": 99.6}
    assert summary(metrics) == "reward 0.500  length 12.3  ppo KL 0.0010  tokens/s 100"


def test_in_a_pipe_each_step_is_a_line_with_the_time_left(capsys):
    console = tracker(3)
    console.log({"val-core/x/reward/mean@1": 0.25}, 0)
    for step in (1, 2, 3):
        console.log({"critic/score/mean": step / 4}, step)
    console.close()
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines[0] == "step 0: val-core/x/reward/mean@1 0.250"
    assert [line.split("  ")[:2] for line in lines[1:]] == [
        [f"step {step}/3", f"reward {step / 4:.3f}"] for step in (1, 2, 3)
    ]
    assert all("left 0:00:0" in line for line in lines[1:])


def test_a_long_run_prints_a_hundred_lines_in_a_pipe(capsys):
    console = tracker(1000)
    for step in range(1, 1001):
        console.log({"train/loss": 1.0}, step)
    assert len(capsys.readouterr().err.splitlines()) == 100
