"""Wall-clock time of each part of a step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from corerl.errors import RunError
from corerl.terminal import notices

MEMORY_ADVICE = {
    "gen": "rollout.n, data.train_batch_size or the backend's batch size (rollout.options)",
    "update_actor": "a smaller actor.ppo_max_token_len_per_gpu, model.enable_gradient_checkpointing, model.dtype=bf16",
}
DEFAULT_ADVICE = "a smaller actor.ppo_max_token_len_per_gpu, data.max_response_length, model.dtype=bf16"

UNDER_WAY: dict[str, float] = {}
"""part -> its start by ``time.perf_counter``; other threads may read it"""
ENDED: dict[str, float] = {}
"""part -> seconds, of the parts of this step that have ended"""


class Timers:
    """Seconds by part; ``with timers("gen"): …`` adds to ``timers.seconds["gen"]``.

    A part within another one, except within ``step``, does not count as time of the other.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        if part == "step":
            ENDED.clear()
        UNDER_WAY[part] = start
        around = self._open[-1] if self._open else "step"
        self._open.append(part)
        try:
            with notices.part("the step" if part == "step" else f"{part} of the step", is_long=True):
                yield
        except Exception as error:
            if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
                advice = MEMORY_ADVICE.get(part, DEFAULT_ADVICE)
                reason = str(error).splitlines()[0] if str(error) else "no memory left"
                raise RunError(f"out of memory in '{part}' ({reason}); settings that help: {advice}") from error
            raise
        finally:
            seconds = time.perf_counter() - start
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds
            if around != "step":
                self.seconds[around] = self.seconds.get(around, 0.0) - seconds
            self._open.pop()
            UNDER_WAY.pop(part, None)
            ENDED[part] = ENDED.get(part, 0.0) + seconds
