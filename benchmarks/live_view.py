"""What the live view takes from a run: its share of a core while it draws, and the time of its call in the loop.

It draws on a pseudo-terminal of this process that nobody looks at.
"""

import argparse
import os
import pty
import sys
import threading
import time
from pathlib import Path

from corerl.contracts.trackers import TrackedRun
from corerl_tools.live.console import LiveConsole

MOST_SHARE = 0.01
PARTS = ("gen", "reward", "handover", "old_log_prob", "ref", "adv", "update_actor", "update_weights")
METRICS = {
    "critic/score/mean": 0.5,
    "response_length/mean": 12.0,
    "actor/kl_loss": 0.1,
    "actor/ppo_kl": 0.01,
    "perf/throughput": 1000.0,
    "timing_s/step": 3.0,
    **{f"timing_s/{part}": 0.3 for part in PARTS},
}


def read_all(master: int) -> None:
    """What a terminal does with what it gets."""
    while os.read(master, 2**16):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    os.environ["TERM"] = "xterm-256color"
    master, slave = pty.openpty()
    threading.Thread(target=read_all, args=(master,), daemon=True).start()
    own, sys.stderr = sys.stderr, os.fdopen(slave, "w")
    tracker = LiveConsole(TrackedRun("", "", Path(), {}, total_steps=2 * arguments.steps))
    start = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        tracker.log(METRICS, step)
    call = (time.perf_counter() - start) / arguments.steps
    start, processor = time.perf_counter(), time.process_time()
    time.sleep(arguments.seconds)
    share = (time.process_time() - processor) / (time.perf_counter() - start)
    tracker.close()
    sys.stderr = own
    print(f"{share:.2%} of a core (required: below {MOST_SHARE:.0%}); {call * 1e6:.1f} µs a step in the training loop")


if __name__ == "__main__":
    main()
