"""A plugin for start.py: writes the moment of each phase of a start to the file named by ``CORERL_PHASES``.

One line of JSON for each moment: its name, and seconds since the epoch. When the engine is ready, its log is copied to
the file with the suffix ``.log``, and the memory of each process on the GPU to the one with ``.memory``.
"""

import functools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(os.environ["CORERL_PHASES"])


def note(moment: str) -> None:
    """Write a moment down."""
    with FILE.open("a") as file:
        file.write(json.dumps([moment, time.time()]) + "\n")


note("plugins")

import corerl.trainer.build  # noqa: E402  # `corerl train` imports it, too
import corerl.trainer.plan  # noqa: E402
from corerl.runtime.local import LocalRuntime  # noqa: E402
from corerl_engines.process import EngineProcess  # noqa: E402

note("imports")


def noted(owner: Any, name: str, moment: Callable[..., str]) -> None:
    """Write a moment down after each call."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = plain(*arguments, **keywords)
        note(moment(*arguments, **keywords))
        return result

    setattr(owner, name, call)


def engine_moment(process: Any, header: dict[str, Any]) -> str:
    """Of an engine's event; keeps what is known of a ready one."""
    if header["event"] == "ready":
        shutil.copy(process.folder / "engine.log", FILE.with_suffix(".log"))
        query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
        with FILE.with_suffix(".memory").open("w") as file:
            if shutil.which(query[0]):
                subprocess.run(query, stdout=file, check=False)
    return f"engine {header['event']}"


noted(corerl.trainer.plan, "make_plan", lambda *_: "data")
noted(EngineProcess, "__init__", lambda *_, **__: "engine spawned")
noted(EngineProcess, "_take_event", engine_moment)
noted(LocalRuntime, "spawn", lambda self, role, *_: f"{role.name} built")
noted(corerl.trainer.build, "_workers", lambda *_: "workers")
noted(LocalRuntime, "send_weights", lambda *_, **__: "weights")
