"""A contender of benchmarks/gpu/peers.py in processes of its own: started, followed, ended."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = "CORERL_PEER"
"""an environment variable by which a contender's last processes are found"""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
}

Steps = dict[int, dict[str, float]]
"""seconds of each part, by the number of the step"""


def show(name: str, what: str, parts: dict[str, float]) -> None:
    print(f"{name}: {what}:", *(f"{part} {seconds:.2f}" for part, seconds in parts.items()), flush=True)


def marked(mark: str) -> Iterator[int]:
    """Processes that were started for a contender and still run."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                yield int(folder.name)
        except OSError:
            continue


def end(process: subprocess.Popen[str], mark: str) -> None:
    """End what a contender started, so that its memory is free for the next."""
    for sent, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 10)):
        for number in marked(mark):
            try:
                os.kill(number, sent)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and (process.poll() is None or any(marked(mark))):
            time.sleep(0.2)


def follow(
    name: str,
    command: list[str],
    environment: dict[str, str],
    seconds: float,
    last: int,
    read: Callable[[str], tuple[int, dict[str, float]] | None],
    log: Path,
) -> tuple[Steps, str]:
    """Run a contender until its last step and print its steps as they come; its steps, and what went wrong."""
    mark = f"{name}-{os.getpid()}"
    began = time.monotonic()
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # its Python is its own
    process = subprocess.Popen(
        command,
        env={**inherited, **OFFLINE, **environment, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        cwd=log.parent,
    )
    steps: Steps = {}
    lines: list[str] = []
    before_the_end: list[str] = []

    def watch() -> None:
        while process.poll() is None and last not in steps and time.monotonic() < began + seconds:
            time.sleep(0.2)
        time.sleep(0.5)  # what it printed last is read
        before_the_end.extend(lines)
        end(process, mark)  # processes that outlive the first hold its output open

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert process.stdout is not None
    with log.open("w", encoding="utf-8") as file:
        for line in process.stdout:
            lines.append(f"{time.monotonic() - began:7.1f} {line}")
            file.write(lines[-1])
            file.flush()
            if (found := read(line)) is not None:
                steps[found[0]] = found[1]
                show(name, f"step {found[0]}", found[1])
    watcher.join()
    problem = ""
    if last not in steps:
        taken = time.monotonic() - began
        problem = f"took over {seconds:.0f} s" if taken > seconds else f"exit code {process.wait()}"
        errors = [line for line in before_the_end[:-60] if "Error" in line and "not available" not in line]
        print(f"{name}: {problem}; errors in {log}, and its end before it was ended:")
        print(*(line.rstrip()[:300] for line in [*errors[-15:], "...", *before_the_end[-60:]]), sep="\n")
    print(f"{name}: {time.monotonic() - began:.0f} s in all", flush=True)
    return steps, problem
