"""Every file of a run folder, damaged in every way; every command that reads run folders ends with a sentence.

The default test takes every sixth file, with one kind of damage each; ``CORERL_CHAOS=1`` takes all kinds for all files,
and those of a run with adapters and groups that wait to be trained.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from corerl.cli.main import run
from rights import rights_of_anybody

STEPS = 2
ALL = bool(os.environ.get("CORERL_CHAOS"))
chaos = pytest.mark.skipif(not ALL, reason="CORERL_CHAOS=1")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 4)


def other_type(path: Path) -> None:
    path.write_text("[1, {}]\n")


def missing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_lost_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere"))


def zeros(path: Path) -> None:
    """What a machine without power leaves of a file whose blocks were not written."""
    path.write_bytes(bytes(path.stat().st_size))


def a_link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    """A hole of a GiB behind the content: more than a reader may take into memory at once."""
    os.truncate(path, path.stat().st_size + 2**30)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def unreadable(path: Path) -> None:
    path.chmod(0)


def read_only(path: Path) -> None:
    path.chmod(0o555)


DAMAGES: tuple[Callable[[Path], None], ...] = (
    *(empty, cut, garbage, other_type, missing, a_folder, a_lost_link),
    *(unreadable, zeros, a_link_to_itself, a_pipe, huge),
)

RICH = ("model.lora_rank=2", "trainer.max_staleness=1", "trainer.log_rollouts_tokens=8")
"""overrides of a run with adapters, groups that wait to be trained, and tokens in the sample rollouts"""


@pytest.fixture(scope="module", params=[(), pytest.param(RICH, marks=chaos)], ids=["plain", "rich"])
def whole(request: pytest.FixtureRequest, material: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with everything that a run leaves, below ``runs/whole``; beside it an undamaged run."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(command(material, folder, "tracking.experiment_name=whole", *request.param)) == 0
    (folder / "overrides").write_text("\n".join(request.param))
    [made] = (folder / "runs" / "whole").iterdir()
    assert run(["report", str(made)]) == 0
    shutil.copytree(made, folder / "runs" / "other" / made.name)
    return folder


def command(material: Path, folder: Path, *overrides: str) -> list[str]:
    config = folder / "config.yaml"
    config.write_text(
        f"""
        model: {{path: {material}/model}}
        data: {{train_files: [{material}/data/train.parquet], val_files: [{material}/data/test.parquet],
               train_batch_size: 4, max_prompt_length: 64, max_response_length: 4}}
        actor: {{device: cpu, optim: {{lr: 1e-3}}, ppo_mini_batch_size: 4}}
        rollout: {{n: 2}}
        trainer: {{total_training_steps: {STEPS}, save_freq: 1, log_rollouts_freq: 1, test_freq: 1,
                  keep_best: critic/score/mean, output_dir: {folder}/runs}}
        tracking: {{loggers: []}}
        """
    )
    return ["train", str(config), *overrides]


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_command_that_reads_a_damaged_run_folder_ends_with_a_sentence(
    whole: Path, material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [made] = (whole / "runs" / "whole").iterdir()
    bad = []
    for number, name in enumerate(files(made)[:: 1 if ALL else 6]):
        for damage in DAMAGES if ALL else (DAMAGES[number % len(DAMAGES)],):
            bad += wrong_ends(whole, material, tmp_path / f"{number}-{damage.__name__}", name, damage, capsys)
    assert not bad, "\n".join(bad)


@chaos
@pytest.mark.parametrize("name", [".", "..", "checkpoints", "checkpoints/global_step_2", "rollouts"])
@pytest.mark.parametrize("damage", [unreadable, read_only])
def test_every_command_that_reads_a_folder_of_another_user_ends_with_a_sentence(
    damage: Callable[[Path], None],
    name: str,
    whole: Path,
    material: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = wrong_ends(whole, material, tmp_path / "copy", name, damage, capsys)
    assert not bad, "\n".join(bad)


def wrong_ends(
    whole: Path,
    material: Path,
    folder: Path,
    name: str,
    damage: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """What is wrong with the ends of the commands in a copy of the runs, in which ``name`` of the run is damaged."""
    [made] = (whole / "runs" / "whole").iterdir()
    shutil.copytree(whole / "runs", folder / "runs", symlinks=True)
    run_folder = folder / "runs" / "whole" / made.name
    damaged = Path(os.path.normpath(run_folder / name))
    mode = damaged.stat().st_mode
    damage(damaged)
    bad = []
    found = commands(material, folder, run_folder, (whole / "overrides").read_text().split())
    for arguments in [*found, *(readers_of_rollouts(folder, damaged) if ALL and "rollouts/" in name else [])]:
        capsys.readouterr()
        with rights_of_anybody():
            code = run(arguments)
        output = capsys.readouterr()
        if why := wrong(code, output.out, output.err, arguments[0], made.name, name):
            bad.append(f"{name} {damage.__name__}: corerl {' '.join(arguments[:2])}: {why}")
    if damaged.is_dir():
        damaged.chmod(mode)
    shutil.rmtree(folder)
    return bad


def commands(material: Path, folder: Path, run_folder: Path, overrides: list[str]) -> list[list[str]]:
    """Those that read a run folder; the last one trains on in it."""
    return [
        ["runs", str(folder / "runs")],
        ["report", str(run_folder)],
        ["report", str(run_folder), str(folder / "runs" / "other" / run_folder.name)],
        ["rollouts", "show", str(run_folder)],
        ["export", str(run_folder / "checkpoints" / "global_step_2"), str(folder / "exported")],
        command(
            *(material, folder, "tracking.experiment_name=whole", f"trainer.total_training_steps={STEPS + 1}"),
            *overrides,
        ),
    ]


def readers_of_rollouts(folder: Path, file: Path) -> list[list[str]]:
    """Those that read one file of sample rollouts, or all."""
    simulated = ["--lengths", str(file.parent), "--steps", "1", "--most", "1", "--gpus", "2"]
    return [
        ["eval", str(file)],
        ["score", str(file)],
        ["data", "inspect", str(file)],
        ["simulate", str(folder / "config.yaml"), *simulated],
    ]


def wrong(code: int, out: str, err: str, what: str, name: str, damaged: str) -> str:
    """What is wrong with the end of a command; '' if nothing is."""
    if "Traceback" in err or "this is a bug" in err:
        return err[-600:]
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and not err.splitlines()[-1].startswith("error: "):
        return f"exit code {code} without a sentence: {err[-300:]}"
    if "No such option" in err:
        return f"the test is wrong: {err}"
    if what == "runs" and (code or out.count(name) < (1 if damaged == ".." else 2)):
        return f"exit code {code}, {out.count(name)} of 2 runs are listed: {err[-300:]}"
    return ""
