"""A third step under way, which vLLM's core makes before it takes in the tokens of the first.

vLLM has two steps under way: between the end of a step and the begin of the step after the next, the core takes in
tokens, schedules, and sends the step to the worker. A steady step needs no tokens of the steps before it, so the core
makes it earlier. Before any other step, tokens are taken in until no more steps than vLLM's own number are under way.
"""

from collections import deque
from typing import Any


def run_ahead(core_class: Any, steps: int) -> None:
    """Let cores of this class, vLLM's ``EngineCore``, have so many steps under way, if their scheduler can
    ``run_ahead``.
    """
    own = core_class.step_with_batch_queue
    if own.__module__ == __name__:
        return

    def step_with_batch_queue(core: Any) -> Any:
        queue, usual = core.batch_queue, core.vllm_config.max_concurrent_batches
        if queue.maxlen < steps:
            queue = core.batch_queue = deque(queue, steps)
        core.batch_queue_size = steps if core.scheduler.runs_ahead() else usual
        if len(queue) < core.batch_queue_size:
            return own(core)
        core.batch_queue_size = steps
        with core.scheduler.without_requests():  # so vLLM's function takes in the oldest step, and makes none
            return own(core)

    core_class.step_with_batch_queue = step_with_batch_queue


def room_for_inputs(runner_module: Any, steps: int) -> None:
    """Let vLLM's second model runner, of this module, keep the inputs of so many steps.

    Raises:
        RuntimeError: this release of vLLM keeps them in another way.
    """
    own = getattr(runner_module, "set_default_max_concurrency", None)
    if own is None:
        raise RuntimeError(
            "rollout.options.max_concurrent_batches: this release of vLLM has two steps under way: set 2"
        )
    runner_module.set_default_max_concurrency = lambda count: own(max(count, steps))
