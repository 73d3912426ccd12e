"""The variables of launchers and proxies around a command."""

import os

import pytest

from corerl.contracts.config import RuntimeConfig
from corerl.contracts.surroundings import is_near, leave_launch, reach_directly
from corerl.runtime.local import LocalRuntime


def test_ranks_but_0_and_numbers_but_1_are_named_and_all_places_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": "0", "LOCAL_RANK": "2", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node7"}
    given |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    kept = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "RANKING": "1", "MY_RANK": "3", "OMPI_MCA_btl": "tcp"}
    with monkeypatch.context() as patch:
        leave_launch()
        for name, value in (given | kept).items():
            patch.setenv(name, value)
        assert leave_launch() == {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "8"}
        assert {name for name in given if name in os.environ} == set()
        assert {name: os.environ[name] for name in kept} == kept
        assert leave_launch() == {}


def test_the_local_runtime_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    LocalRuntime(RuntimeConfig())
    assert "RANK" not in os.environ


LOOPBACK = "localhost,127.0.0.1,::1"


@pytest.mark.parametrize(
    ("given", "hosts", "expected"),
    [
        ({}, ["10.0.0.7"], {}),
        ({"NO_PROXY": "a.org"}, [], {"NO_PROXY": "a.org"}),
        ({"http_proxy": ""}, [], {"http_proxy": ""}),
        ({"HTTPS_PROXY": "p"}, [], {"NO_PROXY": LOOPBACK, "no_proxy": LOOPBACK}),
        (
            {"all_proxy": "p", "NO_PROXY": " a.org , 127.0.0.1"},
            ["node7"],
            dict.fromkeys(("NO_PROXY", "no_proxy"), "a.org,127.0.0.1,localhost,::1,node7"),
        ),
        (
            {"http_proxy": "p", "no_proxy": "a.org", "NO_PROXY": "b.org"},
            [],
            {"no_proxy": f"a.org,{LOOPBACK}", "NO_PROXY": f"b.org,{LOOPBACK}"},
        ),
        ({"http_proxy": "p", "NO_PROXY": "*"}, [], {"NO_PROXY": "*"}),
    ],
)
def test_the_loopback_and_named_hosts_are_added_to_the_exceptions_of_proxies(given, hosts, expected) -> None:
    environment = dict(given)
    reach_directly(*hosts, environment=environment)
    assert environment == given | expected
    reach_directly(*hosts, environment=environment)
    assert environment == given | expected


@pytest.mark.parametrize("host", ["localhost", "127.0.1.1", "[::1]", "10.1.2.3", "192.168.7.1", "[fd00::7]"])
def test_private_addresses_are_near(host) -> None:
    assert is_near(f"http://{host}:8000/v1")


@pytest.mark.parametrize("url", ["http://8.8.8.8/v1", "https://[2001:4860:4860::8888]", "http://no.such.invalid", "no"])
def test_other_networks_are_not_near(url) -> None:
    assert not is_near(url)


def test_the_place_of_a_data_parallel_vllm_around_the_command_is_not_that_of_its_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM takes VLLM_DP_SIZE as the number of its own engines, and would wait for the others."""
    given = {"VLLM_DP_SIZE": "4", "VLLM_DP_RANK": "1", "VLLM_DP_RANK_LOCAL": "1"}
    for name, value in (given | {"VLLM_DP_MASTER_IP": "h", "VLLM_DP_MASTER_PORT": "1", "VLLM_USE_V1": "1"}).items():
        monkeypatch.setenv(name, value)
    assert leave_launch().items() >= given.items()
    assert [name for name in os.environ if name.startswith("VLLM_")] == ["VLLM_USE_V1"]
