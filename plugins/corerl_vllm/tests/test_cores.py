"""Processes that are forked by a server with imported modules."""

import subprocess
import sys

SCRIPT = """
import multiprocessing, os, sys
from multiprocessing import forkserver
from corerl_vllm_engine.cores import Forking

def facts(answers):
    answers.put([os.getppid(), "fractions" in sys.modules, os.environ.get("CORERL_TEST_LATER"), "GONE" in os.environ])

if __name__ == "__main__":
    os.environ["GONE"] = "1"
    multiprocessing.set_forkserver_preload(["fractions"])
    forkserver.ensure_running()
    os.environ["CORERL_TEST_LATER"] = "set by vLLM after its import"
    del os.environ["GONE"]
    context = Forking()
    answers = context.Queue()
    processes = [context.Process(target=facts, args=(answers,)) for _ in range(2)]
    for each in processes:
        each.start()
    found = [answers.get(timeout=60) for _ in processes]
    for each in processes:
        each.join(60)
    assert found[0] == found[1] and found[0][0] != os.getpid(), found
    print(*found[0][1:], sep="|")
"""


def test_cores_have_the_modules_of_their_server_and_the_environment_of_who_starts_them(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "True|set by vLLM after its import|False\n", done.stderr
