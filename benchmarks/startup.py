"""Wall time of the commands that must feel instant: the median of ten runs each, in a table.

Run it with the Python environment whose ``corerl`` is to be measured::

    python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 10
LIMIT = 0.3
COMMANDS = ("--help", "--version", "plugins list", "plugins show local", "config show")


def seconds(command: str) -> list[float]:
    """The wall times of ``corerl <command>``, in seconds, after one run that warms the disk cache."""
    program = [str(Path(sys.executable).with_name("corerl")), *command.split()]
    times = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return times[1:]


def main() -> None:
    print(f"{'command':<26} {'median s':>9} {'min s':>7} {'max s':>7}   limit {LIMIT} s")
    for command in COMMANDS:
        times = seconds(command)
        verdict = "ok" if statistics.median(times) < LIMIT else "TOO SLOW"
        print(f"corerl {command:<19} {statistics.median(times):9.3f} {min(times):7.3f} {max(times):7.3f}   {verdict}")


if __name__ == "__main__":
    main()
