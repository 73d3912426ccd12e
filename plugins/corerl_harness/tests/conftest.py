"""Helpers beside the tests, and an episode of the harness."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from corerl.contracts.agents import AgentContext, Task
from corerl_harness.agent import HarnessAgent
from corerl_harness.options import HarnessOptions

sys.path.insert(0, str(Path(__file__).parent))

from harness_toys import ToyModel


@pytest.fixture
def model():
    model = ToyModel()
    yield model
    model.close()


@pytest.fixture
def play(model, tmp_path):
    """Play an episode of a task with these ``extra_info``; the options are keywords."""
    tmp_path.chmod(0o711)

    def played(command, prompt="2 + 2?", *, info=None, **options):
        given = {"timeout": 20.0, "folders": str(tmp_path), "max_processes": 32, **options}
        agent = HarnessAgent(AgentContext(SimpleNamespace(), None), options=HarnessOptions(command, **given))
        messages = [{"role": "system", "content": "You add."}, {"role": "user", "content": prompt}]
        return asyncio.run(asyncio.wait_for(agent.run(Task(messages, "4", "acme/sums", info or {}), model), 60))

    return played
