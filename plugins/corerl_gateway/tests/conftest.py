"""Helpers beside the tests, and a served model."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def served():
    """The base URL of a tiny model that ``corerl serve`` serves; it ends by Ctrl-C."""
    from corerl_testing.tiny_model import tiny_model

    command = [sys.executable, "-m", "corerl", "serve", str(tiny_model()), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = next((each for each in process.stdout if not each.startswith("working (")), "")
    found = re.search(r"at (http://127\.0\.0\.1:\d+/v1), key 'corerl'", line)
    assert found, line + process.communicate(timeout=10)[0]
    yield found[1]
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 0 and printed.endswith("stopped\n"), printed  # libraries may warn before
