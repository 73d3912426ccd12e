"""The made-up engine."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from slow_engine import Acme


@pytest.fixture
def acme(tmp_path):
    return Acme(tmp_path)
