"""Which code the host runs while the device waits for it, and which code waits for the device."""

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from types import FrameType

import torch

PERIOD = 0.0005
"""seconds between two looks"""


def print_idle(work: Callable[[], object], lines: int = 14) -> None:
    """Run ``work`` three times, and print the places of the host in the moments when its stream has no work."""
    stream, main, done = torch.cuda.current_stream(), threading.get_ident(), threading.Event()
    seen, idle = 0, Counter[str]()

    def look() -> None:
        nonlocal seen
        while not done.wait(PERIOD):
            seen += 1
            if stream.query():
                idle[_place(main)] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(PERIOD / 2)
    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(3):
            work()
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)
    print(f"the device is idle in {sum(idle.values()) / max(seen, 1):.1%} of {seen} looks")
    for place, count in idle.most_common(lines):
        print(f"{count / max(seen, 1):9.1%}  {place}")
    print(flush=True)


def waits(work: Callable[[], object]) -> Counter[str]:
    """How often each place waits for the device, in one run of ``work``."""
    found = Counter[str]()

    def note(message: Warning | str, *rest: object, **more: object) -> None:
        if "synchroniz" in str(message):
            found[_place(threading.get_ident(), skip=3)] += 1

    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = note
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return found


def _place(thread: int, skip: int = 0) -> str:
    """The innermost frame of a thread, and the frames that lead to it, as far as CoreRL's; of the backward pass too."""
    frames = sys._current_frames()
    known = {each.ident for each in threading.enumerate()}
    backward = [frame for ident, frame in frames.items() if ident not in known]
    frame: FrameType | None = backward[0] if backward and thread == threading.main_thread().ident else frames[thread]
    names = list[str]()
    while frame is not None and len(names) < 40:
        file = frame.f_code.co_filename
        names.append(f"{'/'.join(file.split('/')[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        if "corerl" in file and len(names) > skip and "benchmarks" not in file:
            break
        frame = frame.f_back
    inner = names[skip : skip + 3]
    return " < ".join([*inner, *(names[-1:] if names[-1] not in inner else [])])
