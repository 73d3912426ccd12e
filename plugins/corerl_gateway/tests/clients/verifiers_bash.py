"""verifiers 0.4: an episode of its harness ``bash``, whose program runs a command and answers.

The library installs the program's packages with ``uv``. They are installed here, so ``uv`` is a script that names this
Python.
"""

import asyncio
import os
import sys
from pathlib import Path

FOLDER = Path.cwd()
UV = f"""#!/bin/sh
case "$*" in
*--help*) echo "--script" ;;
"python find "*) echo "{sys.executable}" ;;
esac
"""
TASKSET = """
import verifiers.v1 as vf

class Note(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def written(self, trace, runtime) -> float:
        return float((await runtime.read("note.txt")).decode() == "5\\n")

class Notes(vf.Taskset[Note, vf.TasksetConfig]):
    def load(self):
        yield Note(vf.TaskData(prompt="Write 2 + 3 into note.txt."))

__all__ = ["Notes"]
"""


def prepare():
    """The script and the taskset, before the library is imported."""
    (FOLDER / "uv").write_text(UV)
    (FOLDER / "uv").chmod(0o755)
    os.environ["PATH"] = f"{FOLDER}:{os.environ['PATH']}"
    (FOLDER / "notes.py").write_text(TASKSET)
    sys.path.insert(0, str(FOLDER))


async def main(model):
    import verifiers.v1 as vf
    from episodes import address, report

    os.environ["EPISODE_KEY"] = address("bash")["api_key"]
    client = vf.TrainClientConfig(
        base_url=address("bash")["base_url"],
        api_key_var="EPISODE_KEY",
        renderer_model_name=model,
        renderer={"name": "default", "tool_parser": "qwen3"},
    )
    agent = {"harness": {"id": "bash"}, "runtime": {"type": "subprocess"}}
    environment = vf.load_environment(vf.resolve_env_config({"taskset": {"id": "notes"}, "agent": agent}))
    [task] = environment.taskset
    async with environment.serving():
        episode = await environment.run_episode(task, vf.ModelContext(model="policy", client=client))
    [trace] = episode.traces
    report(reward=trace.reward, errors=[str(each) for each in (*episode.errors, *trace.errors)])


prepare()
asyncio.run(main(sys.argv[1]))
