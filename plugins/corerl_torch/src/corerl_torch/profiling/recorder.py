"""The profile of this process. It imports nothing of CoreRL: processes of engines read it too.

A process that holds several roles has one profile, from the start of the first role to the end of the last.
"""

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

TRACE, MEMORY = ".trace.json.gz", ".memory.pickle"


class Recording:
    """A profile under way.

    Args:
        asked: ``folder`` of the files; ``trace``, ``memory``, ``stacks``, ``shapes``, ``max_entries`` of
            :class:`corerl_torch.profiling.options.ProfileOptions`; ``all_threads``: a trace of all threads, which has
            no allocations of a CPU; otherwise of the calling thread, with its backward passes.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        self._asked = asked
        self.names: list[str] = []
        self.open: set[str] = set()
        self._profile: profile | None = None
        on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._history = bool(asked["memory"] and on_gpu)
        if self._history:
            stacks = "all" if asked["stacks"] else "python"
            torch.cuda.memory._record_memory_history("all", stacks=stacks, max_entries=asked["max_entries"])
        if asked["trace"] or not self._history:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
            threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=asked["all_threads"])
            self._profile = profile(
                activities=activities,
                record_shapes=asked["shapes"],
                profile_memory=asked["memory"],
                with_stack=asked["stacks"],
                experimental_config=threads,
                acc_events=True,
            )
            self._profile.start()

    def end(self, rank: int) -> list[Path]:
        """Stop, and write the files; returns their paths."""
        folder = Path(self._asked["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{'+'.join(self.names)}_rank{rank}"
        written = []
        if self._profile is not None:
            self._profile.stop()
            path = folder / f"{stem}{TRACE}"
            unfinished = folder / f".{stem}.{os.getpid()}{TRACE}"
            self._profile.export_chrome_trace(str(unfinished))
            written.append(unfinished.replace(path))
        if self._history:
            path = folder / f"{stem}{MEMORY}"
            unfinished = folder / f".{stem}.{os.getpid()}{MEMORY}"
            torch.cuda.memory._dump_snapshot(str(unfinished))  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(enabled=None)
            written.append(unfinished.replace(path))
        return written


_recording: Recording | None = None


def start(role: str, asked: dict[str, Any]) -> None:
    """Begin the profile of a role; a profile of this process that is under way covers it too."""
    global _recording
    if _recording is None:
        _recording = Recording(asked)
    _recording.names.append(role)
    _recording.open.add(role)


def stop(role: str, rank: int) -> list[Path]:
    """End the profile of a role; the paths of files, if it was the last one of this process."""
    global _recording
    if _recording is None or role not in _recording.open:
        return []
    _recording.open.remove(role)
    if _recording.open:
        return []
    ended, _recording = _recording, None
    return ended.end(rank)
