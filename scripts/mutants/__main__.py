"""``python -m scripts.mutants``: run the tests against small changes of the code.

A seed draws a sample of all mutants of the packages. The tests that mirror a module run against each of its mutants, in
a copy of the tree. ``.mutants/report.txt`` and ``report.json`` list killed, timed-out and surviving mutants, with the
diff of each survivor. ``scripts/mutants/equivalent.json`` lists survivors that are equivalent to the code.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from scripts.mutants import mirrors, report, runner
from scripts.mutants.operators import mutations
from scripts.mutants.runner import Mutant, Run

ROOT = Path(__file__).resolve().parents[2]
JUDGED = Path(__file__).with_name("equivalent.json")

BASELINE_SECONDS = 300.0
"""deadline of one test file without a mutant"""

PATIENCE = 4.0
GRACE = 20.0
"""deadline of a mutant: PATIENCE times the seconds of its tests without it, plus GRACE"""


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    options = _parser().parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    packages = options.package or list(mirrors.PACKAGES)
    chosen = sample(root, packages, options.number, options.seed)
    began = time.monotonic()
    until = began + 60 * options.minutes
    entries: list[report.Entry] = []
    with runner.workers(root, options.workers) as crew:
        runner.preload()
        seconds = baseline(root, chosen, crew, until)
        judged = report.read_judged(JUDGED)
        runs = [planned(mutant, mirrors.tests(root, mutant.module), seconds, options.budget) for mutant in chosen]
        facts = {"seed": options.seed, "packages": packages}
        try:
            for outcome in runner.execute(runs, crew, until):
                entries.append(report.entry(root, outcome, judged))
                print(f"{len(entries)}/{len(runs)} {_line(entries[-1])}", flush=True)
        finally:
            left = len(runs) - len(entries)
            facts["seconds"] = round(time.monotonic() - began, 1)
            report.write(root / options.out, entries, facts, left)
    print("\n".join(["", *report.survivors(entries), *report.summary(entries, left)]))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--package", action="append", choices=list(mirrors.PACKAGES), help="may be given several times")
    parser.add_argument("--number", type=int, default=400, help="mutants in the sample (default 400); 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--workers", type=int, default=2, help="processes, each on one core (default 2)")
    parser.add_argument("--minutes", type=float, default=60.0, help="no mutant is begun after so many (default 60)")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of tests for one mutant (default 60)")
    parser.add_argument("--out", default=".mutants", help="folder of the report (default .mutants)")
    return parser


def sample(root: Path, packages: Iterable[str], number: int, seed: int) -> list[Mutant]:
    """``number`` of all mutants, in the order of their places; 0: all."""
    found = [
        Mutant(package, module, mutation)
        for package in packages
        for module in mirrors.modules(root, package)
        for mutation in mutations((root / module).read_bytes())
    ]
    if not number or number >= len(found):
        return found
    return [found[index] for index in sorted(random.Random(seed).sample(range(len(found)), number))]


def baseline(
    root: Path, mutants: Sequence[Mutant], crew: "Sequence[runner._Worker]", until: float
) -> dict[Path, float]:
    """Test file -> its seconds without a mutant. A file that fails is printed and left out."""
    modules = dict.fromkeys(mutant.module for mutant in mutants)
    files = dict.fromkeys(file for module in modules for file in mirrors.tests(root, module))
    seconds: dict[Path, float] = {}
    for outcome in runner.execute([Run(None, (file,), BASELINE_SECONDS) for file in files], crew, until):
        [file] = outcome.run.tests
        if outcome.verdict == "survived":
            seconds[file] = outcome.seconds
        else:
            print(f"{file} fails without a mutant, and is left out\n{outcome.lines}", flush=True)
    print(f"{len(seconds)} test files take {sum(seconds.values()):.0f} s without a mutant", flush=True)
    return seconds


def planned(mutant: Mutant, files: Sequence[Path], seconds: dict[Path, float], budget: float) -> Run:
    """The nearest test files within the budget, at least one."""
    chosen: list[Path] = []
    spent = 0.0
    for file in files:
        if file in seconds and (not chosen or spent + seconds[file] <= budget):
            chosen.append(file)
            spent += seconds[file]
    return Run(mutant, tuple(chosen), PATIENCE * spent + GRACE)


def _line(each: report.Entry) -> str:
    return f"{each.verdict}: {each.module}:{each.line} ({each.kind}), {each.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
