"""Ranks on two machines whose names are at loopback addresses, as Debian and Ubuntu write them."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from corerl.errors import DeadlineError
from corerl_torch import interfaces, ranks
from two_machines import CABLE, Machine, two_machines

RANK = """
import json, os, sys, torch
import torch.distributed as dist
from corerl_torch import ranks

try:
    ranks.join("cpu", float(sys.argv[1]))
except Exception as error:
    sys.exit(str(error))
sum_of_ranks = torch.tensor([float(os.environ["RANK"]) + 1])
dist.all_reduce(sum_of_ranks)
dist.all_reduce(sum_of_ranks, group=ranks.WritingGroups(20.0).take())
names = [os.environ[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")]
print(json.dumps([sum_of_ranks.item(), names]))
"""


def joined(machines: tuple[Machine, Machine], timeout: float) -> list[tuple[int | None, str, str]]:
    """What a rank on each machine returns and prints."""
    inherited = {name: value for name, value in os.environ.items() if not name.endswith("_SOCKET_IFNAME")}
    meeting = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": machines[0].address, "MASTER_PORT": "29400"}
    started = [
        machine.start(
            [sys.executable, "-c", RANK, str(timeout)],
            env=inherited | meeting | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank, machine in enumerate(machines)
    ]
    said = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


def test_ranks_of_two_machines_meet_on_the_interface_that_leads_to_rank_0(tmp_path: Path) -> None:
    with two_machines(tmp_path) as machines:
        found = joined(machines, 60.0)
    assert [code for code, _, _ in found] == [0, 0], found
    # 1 + 2 on each rank, and once more over both: 6
    assert [json.loads(printed) for _, printed, _ in found] == [[6.0, [CABLE, f"={CABLE}"]]] * 2


def test_the_error_of_a_rank_that_cannot_connect_names_the_refused_address_and_the_seconds_that_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = "Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
    said += "Connection refused, remote=[127.0.1.1]:8087$1"  # printed by gloo on two machines with DEBIAN's hosts

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(said)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    monkeypatch.setattr(dist, "init_process_group", refuse)
    for name, value in zip(ranks.VARIABLES, ("0", "1", "0", "127.0.0.1", port), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(DeadlineError) as raised:
        ranks._meet("gloo", 600.0)
    assert str(raised.value) == (
        f"rank 0 of 1 met the others at 127.0.0.1:{port}, and could not connect to each of them within 0 s "
        "(actor.strategy.timeout = 600 s): 127.0.1.1:8087 refused the connection; this rank listens at 127.0.0.1 "
        f"(GLOO_SOCKET_IFNAME=lo); GLOO_SOCKET_IFNAME names another interface; {said}"
    )


def test_every_address_of_this_machine_is_found_with_its_interface() -> None:
    found = {
        each.address: name
        for name, own in psutil.net_if_addrs().items()
        for each in own
        if each.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert found and {address: interfaces.of_address(address) for address in found} == found
    assert interfaces.of_address("203.0.113.7") is None and interfaces.of_address("no address") is None


def test_the_address_toward_a_host_is_one_of_this_machine_and_none_without_a_route() -> None:
    assert interfaces.toward("127.0.0.1", 29400) == "127.0.0.1"
    assert interfaces.toward("no.such.host.invalid", 29400) is None


def test_an_interface_that_a_variable_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert interfaces.variables("eth1") == {"GLOO_SOCKET_IFNAME": "eth1"}
    monkeypatch.delenv("NCCL_SOCKET_IFNAME")
    assert interfaces.variables("eth1") == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
