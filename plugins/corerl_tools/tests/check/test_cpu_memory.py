"""The estimate of a CPU's memory against real weights: CORERL_REAL_MODELS names the folder of smollm2-135m/."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from corerl.contracts.config import ModelConfig
from corerl_check import GIB, model_size
from corerl_fsdp.options import TorchOptions
from corerl_tools.check.cpu_memory import CPU_PROCESS
from corerl_tools.check.memory_parts import Tokens, update_parts

MODEL = Path(os.environ.get("CORERL_REAL_MODELS", "nowhere"), "smollm2-135m")
STATUS = Path("/proc/self/status")

UPDATES = """
import sys
from pathlib import Path

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.experience import collate
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_torch.supervised import SupervisedObjective

limit = MicroBatching.by_tokens(None, "cpu")
strategy = SingleDeviceStrategy(StrategySpec(ModelConfig(sys.argv[1]), "cpu", limit, optim=OptimConfig()))
rows = collate([list(range(100, 164))] * 2, [list(range(200, 392))] * 2, [0, 1])  # 2 x (64 + 192) tokens
rows.loss_weights = rows.response_mask / rows.response_mask.sum()
for _ in range(2):  # the optimizer's state exists from the second one on
    strategy.update(rows, SupervisedObjective())
print(*(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.skipif(not MODEL.is_dir(), reason="CORERL_REAL_MODELS names no folder with smollm2-135m/")
@pytest.mark.skipif(not STATUS.is_file(), reason="the peak is read from /proc")
def test_an_update_of_real_weights_takes_what_is_estimated() -> None:
    done = subprocess.run([sys.executable, "-c", UPDATES, str(MODEL)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    measured = int(done.stdout) * 1024
    model = ModelConfig(str(MODEL))
    size = model_size(model, "cpu")
    share = TorchOptions().share(size, 1, model, updated=True)
    estimated = CPU_PROCESS + sum(update_parts(size, Tokens(512, 512, 256), share).values())
    assert 0.85 * measured < estimated < 1.2 * measured, f"{estimated / GIB:.2f} GiB, measured {measured / GIB:.2f}"
