"""What the documents say of the engine ``sglang``, on one GPU: a line for each claim.

    python benchmarks/gpu/sglang_claims.py --python .venv-sglang/bin/python --seconds 400

Random models of two or three layers are written, and SGLang starts for a dense model in float32, a mixture of experts
in bf16 with CUDA graphs, and each family of docs/models.md in bf16: first the dense model alone, whose start compiles
kernels, then several at a time. Prints ``passed`` or ``failed``, the claim, its figure and its seconds; goes on after a
failure, and stops after ``--seconds``. Exit code 1: a claim failed or did not run. Tracebacks are in
``$OUT/sglang-claims.txt``, lines in ``$OUT/sglang-claims.json``. ``--only dense,moe,qwen3`` chooses engines.
The claims are those of plugins/corerl_sglang/tests; an H100 takes about 60 s for the first engine, 60 s for the second,
and 15 s for each family.
"""

import argparse
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "helpers"))

from corerl_sglang.backend import SglangBackend
from corerl_torch.families.table import FAMILIES, Family
from engine_claims import DENSE_CLAIMS, MOE_CLAIMS, Claim, a_family_has_the_trainers_log_probs
from sglang_engine import Policy, begin_dense, begin_family, begin_moe

START_SECONDS, CLAIM_SECONDS = 150.0, 90.0


@dataclass
class Engine:
    """An engine, and the claims that it serves."""

    name: str
    begin: Callable[[Path, str | None], SglangBackend]
    dtype: torch.dtype
    claims: Mapping[str, Claim]
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="corerl-claims-")))
    backend: Any = None
    policy: Any = None
    error: BaseException | None = None

    def start(self, python: str | None) -> None:
        """Begin to start."""
        if self.backend is None and self.error is None:
            try:
                self.backend = self.begin(self.folder, python)
            except Exception as error:  # of a model that cannot be written: the claims report it
                self.error = error

    def started(self) -> str:
        """Wait for the start.

        Raises:
            Exception: the engine did not start.
        """
        if self.error is not None:
            raise self.error
        began = time.monotonic()
        self.backend.started()
        waited = time.monotonic() - began
        self.policy = Policy(self.folder, self.dtype)
        return f"started, {waited:.0f} s waited"

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Report:
    """Lines of claims, and their deadline."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self.lines: list[dict[str, object]] = []
        self._tracebacks = ""

    def run(self, name: str, work: Callable[[], str], limit: float) -> bool:
        """Run a claim in a thread for at most ``limit`` seconds, and print its line."""
        began = time.monotonic()
        left = min(limit, self._end - began)
        outcome: list[tuple[str, str]] = []

        def attempt() -> None:
            try:
                outcome.append(("passed", work()))
            except BaseException as error:
                self._tracebacks += f"== {name}\n{traceback.format_exc()}\n"
                text = str(error).strip() or traceback.format_exc().strip().splitlines()[-3]
                outcome.append(("failed", f"{type(error).__name__}: {text:.300}"))

        if left > 0:
            thread = threading.Thread(target=attempt, daemon=True)
            thread.start()
            thread.join(left)
        state, figure = outcome[0] if outcome else ("not run", "out of time")
        seconds = round(time.monotonic() - began, 1)
        self.lines.append({"claim": name, "state": state, "figure": figure, "seconds": seconds})
        print(f"{state:8} {name}: {' '.join(figure.split())} ({seconds} s)", flush=True)
        self.write()
        return state == "passed"

    def write(self) -> None:
        if (out := os.environ.get("OUT")) is not None:
            (Path(out) / "sglang-claims.json").write_text(json.dumps(self.lines, indent=1))
            (Path(out) / "sglang-claims.txt").write_text(self._tracebacks)


def main() -> None:
    asked = _arguments()
    torch.set_num_threads(8 if torch.cuda.is_available() else 1)
    report = Report(asked.seconds)
    engines = [
        Engine("dense", begin_dense, torch.float32, DENSE_CLAIMS),
        Engine("moe", begin_moe, torch.bfloat16, MOE_CLAIMS),
        *(_of_family(each) for each in FAMILIES),
    ]
    if asked.only:
        engines = [each for each in engines if each.name in asked.only.split(",")]
    try:
        for place, engine in enumerate(engines):
            engine.start(asked.python)
            started = report.run(f"{engine.name}: start", engine.started, START_SECONDS)
            for each in engines[place + 1 : place + 1 + asked.at_a_time]:
                each.start(asked.python)
            for name, claim in engine.claims.items() if started else ():
                work = functools.partial(claim, engine.backend, engine.policy)
                report.run(f"{engine.name}: {name}", work, CLAIM_SECONDS)
            engine.close()
    finally:
        for engine in engines:
            engine.close()
    failed = sum(each["state"] != "passed" for each in report.lines)
    print(f"{len(report.lines) - failed} of {len(report.lines)} passed", flush=True)
    os._exit(1 if failed else 0)  # a thread may wait for a closed engine


def _of_family(family: Family) -> Engine:
    def begin(folder: Path, python: str | None) -> SglangBackend:
        return begin_family(folder, python, family)

    claims = {"log-probs": a_family_has_the_trainers_log_probs}
    return Engine(family.model_type, begin, torch.bfloat16, claims)


def _arguments() -> argparse.Namespace:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--python", help="interpreter of the engine's environment")
    cli.add_argument("--seconds", type=float, default=400.0, help="of everything")
    cli.add_argument("--only", default="", help="engines, with commas between them")
    cli.add_argument("--at-a-time", type=int, default=6, help="engines that start while another one serves")
    return cli.parse_args()


if __name__ == "__main__":
    main()
