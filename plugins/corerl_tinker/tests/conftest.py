"""Helpers beside the tests, and a server in this process."""

import contextlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A server of a tiny model with two users, in threads of this process."""
    from tinker_toys import running

    with running(tmp_path_factory.mktemp("tinker"), rank=4) as served:
        yield served


@pytest.fixture
def client(server):
    """A session of the first user."""
    from tinker_toys import KEYS, Client, Refused

    made = Client(server.url, KEYS[0])
    yield made
    with contextlib.suppress(Refused):  # the test has ended it
        made.finish()
