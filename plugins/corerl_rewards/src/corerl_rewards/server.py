"""A server of an inference engine for rewards, in a process of its own, on GPUs of its own or of a pool."""

import functools
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from corerl.errors import RunError
from corerl.terminal import say
from corerl_rewards.options import HttpOptions, ServerOptions
from corerl_rewards.post import Poster, client

if TYPE_CHECKING:
    from corerl_rewards.placed import PlacedServer

ENDING = 20.0
"""seconds from SIGTERM to SIGKILL"""

SHOWN = 4000
"""characters of the server's output in an error"""

_CAUSE = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception): .+|\S.* died unexpectedly.*")
_CONSEQUENCE = "root cause"
"""vLLM's server ends with an error of its own, behind that of the engine"""

_VLLM = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_VLLM |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
"""its processes are on one machine; its CPU build would take nearly all memory; variables set outside are kept"""

_DIES_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); "  # PR_SET_PDEATHSIG, SIGTERM
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


class EngineServer:
    """Starts a server and waits until it answers.

    Args:
        command: the server's, without its port.
        probe: path that answers 200 once the server is ready.

    Raises:
        RunError: the server ended, or did not answer within ``options.start_timeout`` seconds.
    """

    def __init__(
        self, command: Sequence[str], options: ServerOptions, probe: str, environment: Mapping[str, str] | None = None
    ) -> None:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._output = tempfile.NamedTemporaryFile(prefix="corerl-reward-", suffix=".log")  # noqa: SIM115
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, options.gpus))} if options.gpus else {}
        whole = [*command, "--port", str(port)]
        if sys.platform == "linux":
            whole = [sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), *whole]
        say(f"starting the reward model's engine: {options.engine}")
        self._process = subprocess.Popen(
            whole,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **visible, **(environment or {})},
            start_new_session=True,
        )
        try:
            self._wait(f"{self.url}{probe}", options, environment or {})
        except BaseException:
            self.close()
            raise

    def _wait(self, url: str, options: ServerOptions, environment: Mapping[str, str]) -> None:
        headers = {"Authorization": f"Bearer {environment[KEY]}"} if KEY in environment else {}
        deadline = time.monotonic() + options.start_timeout
        while True:
            status = self._process.poll()
            if status is not None:
                raise RunError(f"the reward model's {options.engine} ended with status {status}:\n{self.output()}")
            try:
                with client(url, headers=headers, timeout=5.0) as asking:
                    if asking.get(url).is_success:
                        return
            except httpx.HTTPError:
                pass
            if time.monotonic() > deadline:
                raise RunError(
                    f"the reward model's {options.engine} did not answer within reward.manager.start_timeout = "
                    f"{options.start_timeout:g} s:\n{self.output()}"
                )
            time.sleep(0.3)

    def started(self) -> None:
        """Nothing: it answers since it was made."""

    def poster(self, path: str, options: HttpOptions) -> Poster:
        """Posts to a path of the server."""
        return Poster(self.url + path, options)

    def output(self) -> str:
        """The likely cause, and the end of what the server printed."""
        text = Path(self._output.name).read_text(errors="replace")
        causes = [found[0] for line in text.splitlines() if (found := _CAUSE.search(line)) and _CONSEQUENCE not in line]
        return "\n".join([*causes[-1:], text[-SHOWN:].strip()])

    def close(self) -> None:
        """End the server and its processes."""
        for number, seconds in ((signal.SIGTERM, ENDING), (signal.SIGKILL, ENDING)):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(seconds)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._output.close()


KEY = "CORERL_JUDGE_KEY"
"""variable of the key of a judge's endpoint"""


def classifier(options: Any) -> "EngineServer | PlacedServer":
    """A server of a model for sequence classification, by vLLM's or SGLang's own program."""
    unset = {name: value for name, value in _VLLM.items() if name not in os.environ}
    given = unset if options.engine == "vllm" else {}
    return _started(functools.partial(_classifier, options), options, "/health", given)


def _started(
    command: Callable[[int], Sequence[str]], options: Any, probe: str, environment: Mapping[str, str] | None = None
) -> "EngineServer | PlacedServer":
    """Here, or in the pool of the options."""
    if options.pool is None:
        return EngineServer(command(max(1, len(options.gpus))), options, probe, environment)
    from corerl_rewards.placed import PlacedServer

    return PlacedServer(command, options, probe, environment)


def _classifier(options: Any, size: int) -> list[str]:
    python = options.python or sys.executable
    half = options.dtype == "bf16" or (options.dtype == "auto" and bool(options.gpus or options.pool))
    dtype, path = "bfloat16" if half else "float32", str(_folder(options.path))
    if options.engine == "vllm":
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", path, "--runner", "pooling"]
        given = {"max-model-len": options.max_length, "tensor-parallel-size": size, "dtype": dtype}
    else:
        command = [python, "-m", "sglang.launch_server", "--model-path", path, "--is-embedding"]
        given = {"context-length": options.max_length, "tp-size": size, "dtype": dtype}
    given |= {"host": "127.0.0.1"} | ({"trust-remote-code": True} if options.trust_remote_code else {})
    given |= {name.replace("_", "-"): value for name, value in options.engine_args.items()}
    return [*command, *_flags(given)]


def judge(options: Any) -> "tuple[EngineServer | PlacedServer, dict[str, str]]":
    """``corerl serve`` of a chat model by a rollout backend, and the header with its key."""
    key = secrets.token_urlsafe(24)
    started = _started(functools.partial(_judge, options), options, "/v1/models", {KEY: key})
    return started, {"Authorization": f"Bearer {key}"}


def _judge(options: Any, size: int) -> list[str]:
    rollout = {"name": options.engine, "tensor_model_parallel_size": size}
    given = dict(options.engine_args) | ({"python": options.python} if options.python else {})
    room = [f"data.max_prompt_length={options.max_prompt_length}", f"data.max_response_length={options.max_tokens}"]
    keys = [f"rollout.{name}={value}" for name, value in rollout.items()]
    keys += [f"rollout.options.{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "corerl", "serve", str(_folder(options.model)), "--api-key-env", KEY, *keys, *room]


def _flags(given: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, value in given.items():
        if value is not False and value is not None:
            found += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return found


def _folder(path: str) -> Path | str:
    folder = Path(path).expanduser()
    return folder.absolute() if folder.is_dir() else path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
