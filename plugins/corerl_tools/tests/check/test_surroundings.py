"""Findings of `corerl check` about environment variables."""

import importlib.util

import pytest

from corerl.config.load import load
from corerl.contracts.config import TrainConfig
from corerl_tools.check.surroundings import look


@pytest.mark.parametrize(
    ("agent", "library", "proxy", "names"),
    [
        ("chat", None, "socks5://user:key@10.0.0.1:1080", "ALL_PROXY"),
        ("chat", "installed", "socks5h://10.0.0.1:1080", ""),
        ("chat", None, "http://10.0.0.1:3128", ""),
        (None, None, "socks5://10.0.0.1:1080", ""),
    ],
)
def test_a_socks_proxy_without_its_library_is_a_warning_for_agents_that_shows_no_value(
    agent, library, proxy, names, monkeypatch
):
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: library)
    given = ["model.path=x", "data.train_files=[x.parquet]", f"rollout.agent={agent or 'null'}"]
    found = list(look(load(TrainConfig, None, given)))
    assert [(each.severity, each.sentence.partition(":")[0]) for each in found] == [("warning", names)] * bool(names)
    assert "10.0.0.1" not in str(found) and "key@" not in str(found)
