"""A controller of its own process: prints the processes of its cluster, asks subprocesses for their exit codes, hears a
signal, loses a worker and closes; then it prints who listened where. With the argument ``wait`` it waits instead, with
``again`` it stops its raylet and starts another cluster, and with a folder it is a run there, in a cluster that others
run if an address follows."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from ray_toys import ENGINE, TOY, Engine, Toy

from corerl.contracts.config import RuntimeConfig
from corerl.errors import CoreRLError, WorkerDiedError
from corerl_check.run_status import recorded
from corerl_ray.launch import launch
from corerl_ray.options import RayOptions
from corerl_ray.plugin import run_started
from corerl_ray.processes import is_alive
from listening import listeners


def descendants(pid):
    """Process id -> command line, of those that are no zombies and have begun."""
    found = {}
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, listed.read_text().split()):
            command = b""
            while is_alive(child) and not (command := Path(f"/proc/{child}/cmdline").read_bytes()):
                time.sleep(0.01)
            name = command.replace(b"\0", b" ").decode(errors="replace").strip()
            found |= {child: name} | descendants(child) if is_alive(child) else {}
    return found


def start_again(runtime, group):
    """Prints the error of a cluster that hangs, whether its watcher is left, and what a worker of the next one says."""
    error = ""
    from corerl_ray import cluster  # after launch, which sets what Ray reads when it is imported

    watching = cluster.watcher._process
    os.kill(runtime.cluster.health.processes["raylet"], signal.SIGSTOP)
    with contextlib.closing(runtime):
        try:
            group.sleep(600)
        except WorkerDiedError as lost:
            error = str(lost)
    with contextlib.closing(launch(RuntimeConfig(name="ray"), options=RayOptions())) as another:
        print(json.dumps([error, watching.poll(), another.spawn(TOY, Toy).rank_zero()]), flush=True)


if __name__ == "__main__":
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] not in ("wait", "again") else None
    address = sys.argv[2] if len(sys.argv) > 2 else None
    options = RayOptions(hang_timeout=2.0 if sys.argv[1:] else 120.0, address=address)
    runtime = launch(RuntimeConfig(name="ray"), options=options)
    group = runtime.spawn(TOY, Toy)
    group.start_child()
    print(json.dumps(descendants("self")), flush=True)
    if sys.argv[1:] == ["again"]:
        start_again(runtime, group)
        sys.exit(0)
    if sys.argv[1:] == ["wait"]:
        time.sleep(600)
    if folder is not None:
        run_started(SimpleNamespace(folder=folder))
        try:
            with contextlib.closing(runtime), recorded(folder, 9):
                group.sleep(600)
        except CoreRLError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)
    code = subprocess.run([sys.executable, "-c", "raise SystemExit(3)"]).returncode
    rollout = runtime.spawn(ENGINE, Engine)
    listening, launched = listeners(os.getpid()), group.environment()["TORCHELASTIC_USE_AGENT_STORE"]
    print(json.dumps([code, group.code_of_a_child(), rollout.code_of_a_child()]), flush=True)
    signal.raise_signal(signal.SIGTERM)
    print(json.dumps(heard), flush=True)
    try:
        group.fail(0, "kill")
    except CoreRLError as error:
        print(json.dumps(str(error)), flush=True)
        time.sleep(2)
    runtime.close()
    print(json.dumps(descendants("self")), flush=True)
    print(json.dumps([len(listening), [str(each) for each in listening if not each.is_local], launched]), flush=True)
