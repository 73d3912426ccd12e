"""Processes that are forked by a server with imported modules."""

import os
import subprocess
import sys

SCRIPT = """
import multiprocessing, os, sys
from multiprocessing import forkserver
from corerl_vllm_engine import cores
from corerl_vllm_engine.cores import Forking

def facts():
    later, is_gone = os.environ.get("CORERL_TEST_LATER"), "GONE" not in os.environ
    return [os.getppid(), "fractions" in sys.modules, later, is_gone, sys.threads]

def work(answers):
    answers.put(facts())

def core(answers):
    os.environ["CORERL_TEST_LATER"] += " and by the core"
    context = sys.modules[cores.EXECUTOR].get_mp_context()
    worker = context.Process(target=work, args=(answers,), daemon=True)
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0, worker.exitcode
    answers.put(facts())

if __name__ == "__main__":
    os.environ["GONE"] = "1"
    multiprocessing.set_forkserver_preload(["fractions", "executor"])
    forkserver.ensure_running()
    os.environ["OMP_NUM_THREADS"] = "3"
    os.environ["CORERL_TEST_LATER"] = "set by vLLM after its import"
    del os.environ["GONE"]
    context = Forking()
    answers = context.Queue()
    processes = [context.Process(target=core, args=(answers,)) for _ in range(2)]
    for each in processes:
        each.start()
    found = sorted((answers.get(timeout=60) for _ in range(4)), key=str)
    for each in processes:
        each.join(60)
        assert each.exitcode == 0, each.exitcode
    server = found[0][0]
    assert server != os.getpid() and {each[0] for each in found} == {server}, found
    for each in found:
        print(*each[1:], sep="|")
"""

EXECUTOR = """
import sys, types
from corerl_vllm_engine import cores
sys.modules["torch"] = types.SimpleNamespace(set_num_threads=lambda count: setattr(sys, "threads", count))
sys.modules[cores.EXECUTOR] = types.ModuleType(cores.EXECUTOR)
"""


def test_cores_and_their_workers_have_the_modules_of_one_server_and_the_environment_of_who_starts_them(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "executor.py").write_text(EXECUTOR)  # a module that the server imports
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120)
    line = "True|set by vLLM after its import and by the core|True|3\n"
    assert done.stdout == 4 * line, done.stderr
