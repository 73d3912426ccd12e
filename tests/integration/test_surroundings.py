"""Variables of other programs around the command: a launcher's place among ranks, proxies."""

import hashlib
import os
from pathlib import Path

import pytest

from proxies import silent_proxy

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "0",
    "ROLE_RANK": "1",
    "ROLE_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.79.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0",
}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}
OTHER_MPI = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3", "MV2_COMM_WORLD_RANK": "3", "MPI_LOCALRANKID": "3"}
SLURM = {"SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}

LAUNCHERS = {
    "two variables": {"RANK": "1", "WORLD_SIZE": "4"},
    "rank alone": {"RANK": "1"},
    "torchrun": TORCHRUN,
    "MPI and Slurm": OPEN_MPI | OTHER_MPI | SLURM,
}


def checkpoint(runs: Path) -> dict[str, str]:
    """Digests of the tensors of the last checkpoint, the random states among them."""
    [folder] = runs.glob("*/*/checkpoints/global_step_2")
    files = [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".pt")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


@pytest.fixture(scope="module")
def expected() -> dict[str, dict[str, str]]:
    """The checkpoint of a run without launchers' variables, once it is there."""
    return {}


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS.keys())
def test_a_local_run_ignores_the_place_that_a_launcher_gives_it_and_names_what_it_ignores(
    launcher, train, workplace, expected, monkeypatch
):
    saves = ("trainer.save_freq=1", "trainer.save_timeout=60", "trainer.on_save_error=stop")
    for name in [name for name in os.environ if name in set().union(*LAUNCHERS.values())]:
        monkeypatch.delenv(name)
    if not expected:
        outcome = train(*saves, f"trainer.output_dir={workplace.folder}/alone")
        assert outcome.code == 0 and "ignored" not in outcome.stderr
        expected.update(checkpoint(workplace.folder / "alone"))
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    outcome = train(*saves)
    assert outcome.code == 0
    assert checkpoint(workplace.runs) == expected and "random-0.pt" in " ".join(expected)
    [line] = [line for line in outcome.stderr.splitlines() if "is nobody's rank" in line]
    named = {name for name, value in launcher.items() if name.endswith(("RANK", "SIZE", "ID")) and value in "1234"}
    assert {each.partition("=")[0] for each in line.partition(": ignored")[0].split(", ")} == named


CLIENTS = """
import asyncio, json, subprocess, sys, urllib.request
import aiohttp, httpx
from openai import AsyncOpenAI
from corerl.contracts.agents import AgentResult

BODY = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2 ="}], "max_tokens": 2}
PROGRAM = '''
import json, sys, urllib.request
url, key, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode(), {"Authorization": f"Bearer {key}"})
print(len(json.load(urllib.request.urlopen(request, timeout=10))["choices"]))
'''

async def clients(task, model):
    url, headers = f"{model.base_url}/chat/completions", {"Authorization": f"Bearer {model.api_key}"}
    async with AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, timeout=10, max_retries=0) as client:
        await client.chat.completions.create(**BODY)
    async with httpx.AsyncClient(timeout=10) as client:
        (await client.post(url, json=BODY, headers=headers)).raise_for_status()
    async with aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(10)) as client:
        async with client.post(url, json=BODY, headers=headers) as answer:
            answer.raise_for_status()
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, url, model.api_key, json.dumps(BODY), stdout=subprocess.PIPE
    )
    said, _ = await program.communicate()
    return AgentResult(reward=float(said))
"""


@pytest.mark.parametrize("names", [(), ("ALL_PROXY",), ("http_proxy",), ("HTTP_PROXY", "HTTPS_PROXY")])
def test_the_clients_of_an_agent_reach_the_policy_without_the_proxies_around_the_run(
    names, train, workplace, monkeypatch
):
    (workplace.folder / "agent.py").write_text(CLIENTS)
    agent = f"rollout.agent={workplace.folder}/agent.py:clients"
    with silent_proxy(monkeypatch, *names) as asked:
        small = ("data.train_batch_size=2", "actor.ppo_mini_batch_size=2", "trainer.total_training_steps=1")
        outcome = train(agent, *small, "rollout.n=2", "rollout.multi_turn.score_response=false")
    assert outcome.code == 0 and "could not be scored" not in outcome.stderr
    assert asked == []
