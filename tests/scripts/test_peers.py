"""What benchmarks/gpu/peers.py reads of the others, and what it gives them."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
LINE = (
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:2 - actor/kl_loss:0.1 - timing_s/gen:16.25 - "
    "timing_s/ref:np.float64(3.5) - timing_s/adv:0.25 - timing_s/update_actor:8.0 - timing_s/update_weights:5e-01 - "
    "timing_s/step:29.0 - timing_per_token_ms/gen:0.06 - training/global_step:2\n"
)


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GPU))


def module(name: str) -> ModuleType:
    return __import__(name)


def test_a_line_of_verl_becomes_seconds_of_parts_that_add_up() -> None:
    number, parts = module("peers_verl").step_of(LINE)
    assert number == 2
    assert parts == {"generation": 16.25, "reference": 3.5, "update": 8.0, "weights": 0.5, "rest": 0.75, "step": 29.0}


@pytest.mark.parametrize("line", ["step:0 - val-core/acc:0.5\n", "Training Progress: 0%\n", ""])
def test_other_lines_of_verl_are_no_steps(line: str) -> None:
    assert module("peers_verl").step_of(line) is None


def test_padding_functions_of_the_stand_in_are_inverse() -> None:
    stand_in = module("peers_flash_attn")
    states, mask = torch.randn(3, 4, 2), torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]])
    kept, indices, bounds, longest, lengths = stand_in.unpad_input(states, mask)
    assert (bounds.tolist(), longest, lengths.tolist()) == ([0, 2, 6, 7], 4, [2, 4, 1])
    assert torch.equal(kept, torch.cat([states[0, :2], states[1], states[2, 2:3]]))
    assert torch.equal(stand_in.pad_input(kept, indices, 3, 4), states * mask[..., None])


CODE = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("1 0.5", flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


@pytest.mark.parametrize(("sleep", "last", "problem"), [(0, 2, "exit code 3"), (600, 1, ""), (600, 2, "took over 2 s")])
def test_a_contender_is_read_line_by_line_and_all_of_it_ends(
    sleep: int, last: int, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = module("peers_process")

    def read(line: str) -> tuple[int, dict[str, float]]:
        number, seconds = line.split()
        return int(number), {"step": float(seconds)}

    command = [sys.executable, "-c", CODE, str(sleep)]
    found = process.follow("peer", command, {}, 2, last, read, tmp_path / "log.txt")
    assert found == ({1: {"step": 0.5}}, problem)
    assert not list(process.marked(f"peer-{os.getpid()}"))
    printed = capsys.readouterr().out
    assert printed.startswith("peer: step 1: step 0.50\n")
    assert problem in printed
