"""Two small runs."""

import json
from pathlib import Path

import pytest

from corerl_check.run_status import RunStatus, write_status
from corerl_tools.episodes.timeline import path_of, write_timeline
from corerl_tools.evaluation.files import write_rows
from corerl_tools.evaluation.samples import write_rollouts

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'> & 'quotes'"


def make_run(folder: Path, steps: int, lr: str, state: str) -> Path:
    """A run with two responses to one prompt in every second step, the first of which has its tokens."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"model: {{path: m}}\nactor: {{optim: {{lr: {lr}}}}}\nrollout: {{n: 2}}\n")
    part = {"part": "adv_estimator", "kind": "advantage estimator", "name": "grpo", "options": {}}
    (folder / "plugins.json").write_text(json.dumps([part | {"distribution": "corerl-grpo", "version": "0.1.0"}]))
    error = "RunError: the <b>end</b>" if state == "failed" else None
    write_status(folder, RunStatus(state, steps, "h", 1, "p", 0.0, 60.0, error))
    records = [{"step": 0, "val-core/x/reward/mean@1": 0.125, "timing_s/testing": 3600.0}]
    for step in range(1, steps + 1):
        record = {"step": step, "critic/score/mean": step / steps, "actor/entropy": 1 / step}
        record |= {"response_length/mean": 5.0, "perf/total_num_tokens": 100.0, "perf/throughput": 50.0}
        record |= {"timing_s/step": 1800.0, "timing_s/gen": 600.0, "timing_s/update_actor": 1000.0}
        records.append(record)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for step in range(2, steps + 1, 2):
        common = {"data_source": "x", "prompt": [{"role": "user", "content": f"question {step} {HOSTILE}"}]}
        common |= {"ground_truth": "4", "components": {"format": 1.0}, "error": None, "prompt_length": 3, "group": 0}
        common |= {"finish_reason": "stop", "weight_version": step - 1}
        tokens = {"token_ids": [5, 6, 7], "token_texts": ["two", " and\n", "<two>"], "log_probs": [-0.1, -4.0, 0.0]}
        tokens |= {"ref_log_probs": [-0.1, -3.0, -0.5], "advantages": [0.5, 0.5, 0.5]}
        first = common | {"response": "two and\n<two>", "response_length": 3, "score": 1.0} | tokens
        second = common | {"response": "none", "response_length": step, "score": 0.0}
        write_rows(folder / "rollouts" / f"step_{step:06d}.parquet", [first, second])
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """``a/one``, finished, and ``a/two``, failed."""
    folder = tmp_path_factory.mktemp("runs")
    return [
        make_run(folder / "a" / "one", 30, "0.001", "finished"),
        make_run(folder / "a" / "two", 12, "0.01", "failed"),
    ]


@pytest.fixture(scope="session")
def agent_run(played, played_tokens, results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the conversations and the timeline of a step of an agent's episodes."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "a" / "agent", 1, "0.001", "finished")
    path = folder / "rollouts" / "step_000001.parquet"
    write_rollouts(path, played.rollouts, results, played_tokens)
    write_timeline(path_of(path), played.rollouts, results)
    return folder
