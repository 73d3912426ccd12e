"""verl's replay buffer with a short pause between two looks at what was generated, for benchmarks/gpu/peers.py.

verl 0.9.1 looks every 2 s, so that generation takes a multiple of 2 s; its config has no key for the pause. The class
is named by verl's own key ``trainer.v1.sampler.custom_sampler``.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

SECONDS = 0.1


class OftenPolled(ReplayBuffer):  # type: ignore[misc]
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"poll_interval": SECONDS, **options})
