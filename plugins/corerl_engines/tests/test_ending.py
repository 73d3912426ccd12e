import os
import signal
import subprocess
from pathlib import Path

from corerl_engines.remote.ending import members


def test_the_members_of_a_group_are_those_that_are_alive_whatever_their_names(tmp_path: Path) -> None:
    program = tmp_path / "a) Z 1 ("
    program.write_text("#!/bin/bash\nsleep 600 &\necho $!\nread\n")
    program.chmod(0o755)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True, start_new_session=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        try:
            assert Path(f"/proc/{leader.pid}/comm").read_text() == "a) Z 1 (\n"
            assert members(leader.pid) == {leader.pid, child}
            leader.kill()
            leader.wait()
            assert members(leader.pid) == {child}
        finally:
            os.killpg(leader.pid, signal.SIGKILL)
