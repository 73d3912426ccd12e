"""A third step under way, which vLLM's core sends to the worker before it takes in the tokens of the first.

vLLM has two steps under way. So from the end of a step to the begin of the step after the next, its tokens go to the
core, which schedules and sends a step that the worker prepares. With a small model that takes longer than the step
between them, and the device waits. A steady step needs no tokens of the steps before it, so the core sends it earlier.
Before any other step, tokens are taken in until vLLM's own number of steps is under way.
"""

from collections import deque
from typing import Any

USUAL = 2
"""vLLM's own number of steps under way, without stages"""

STEPS = 3


def run_ahead(core_class: Any) -> None:
    """Let cores of this class, vLLM's ``EngineCore``, have ``STEPS`` under way, if their scheduler ``runs_ahead``."""
    own = core_class.step_with_batch_queue
    if own.__module__ == __name__:
        return

    def step_with_batch_queue(core: Any) -> Any:
        queue = core.batch_queue
        if queue.maxlen < STEPS:
            queue = core.batch_queue = deque(queue, STEPS)
        core.batch_queue_size = STEPS if core.scheduler.runs_ahead() else USUAL
        if len(queue) < core.batch_queue_size:
            return own(core)
        core.batch_queue_size = STEPS
        with core.scheduler.without_requests():  # so vLLM's function takes in the oldest step, and makes none
            return own(core)

    core_class.step_with_batch_queue = step_with_batch_queue


def has_room() -> bool:
    """Whether vLLM's second model runner can keep the inputs of more steps; a release may keep them in another way."""
    from vllm.v1.worker.gpu import buffer_utils

    return hasattr(buffer_utils, "set_default_max_concurrency")


def make_room() -> None:
    """Let vLLM's second model runner keep the inputs of ``STEPS`` steps, if it can."""
    from vllm.v1.worker.gpu import model_runner

    if has_room():
        own = model_runner.set_default_max_concurrency
        model_runner.set_default_max_concurrency = lambda count: own(max(count, STEPS))
