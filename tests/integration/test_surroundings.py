"""Variables of other programs around the command: a launcher's place among ranks."""

import hashlib
import os
from pathlib import Path

import pytest

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
