"""Sessions of clients, their models and samplers; the order of a model's requests."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from corerl_tinker.errors import UserError
from corerl_tinker.training.clients import State
from corerl_tinker.training.states import Adapter


@dataclass(eq=False)
class Published:
    """Weights that samplers use; those of kind ``inflight`` change.

    Attributes:
        state: None: they were dropped, or are not loaded.
        address: of saved weights; '': they are in memory alone.
        load: loads saved weights, in the computing thread.
    """

    state: State | None
    address: str = ""
    load: Callable[[], None] | None = None


@dataclass(eq=False)
class SamplingSession:
    """A sampler of a client."""

    sampler_id: str
    session_id: str
    published: Published
    clones: int = 0


@dataclass(eq=False)
class Waiting:
    """A request that came before an earlier one of its model."""

    start: Callable[[], None]
    fail: Callable[[UserError], None]
    since: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class Model:
    """A model that a client trains.

    Attributes:
        state: None until it is made.
        next_seq: number of the request that is executed next.
        waiting: number -> request.
        inflight: weights of all samplers of this kind.
        unnamed: weights of samplers in memory, the oldest first.
    """

    model_id: str
    session_id: str
    adapter: Adapter
    state: State | None = None
    next_seq: int = 1
    waiting: dict[int, Waiting] = field(default_factory=dict)
    inflight: Published | None = None
    unnamed: list[Published] = field(default_factory=list)

    def trained(self) -> State:
        """
        Raises:
            UserError: its creation has failed.
        """
        if self.state is None:
            raise UserError(f"the model {self.model_id} was not created, or was freed")
        return self.state

    def take(self, seq: int, waiting: Waiting) -> None:
        """Start a request once all earlier ones have started.

        Raises:
            UserError: the number was used before.
        """
        if seq < self.next_seq or seq in self.waiting:
            raise UserError(f"request {seq} of {self.model_id} came twice; {self.next_seq} is the next")
        self.waiting[seq] = waiting
        while (ready := self.waiting.pop(self.next_seq, None)) is not None:
            self.next_seq += 1
            ready.start()

    def give_up(self, seconds: float) -> None:
        """Fail requests that have waited too long for an earlier one, and go on behind them."""
        late = [seq for seq, each in self.waiting.items() if time.monotonic() - each.since > seconds]
        for seq in late:
            missing = f"request {self.next_seq} of {self.model_id}, which precedes {seq}"
            self.waiting.pop(seq).fail(UserError(f"{missing}, did not come within {seconds:g} s"))
        if late:
            self.next_seq = max(self.next_seq, *late) + 1


@dataclass(eq=False)
class Session:
    """A client.

    Attributes:
        owner: of the key that began it.
        seen: seconds of the monotonic clock of its last sign of life.
        pending: requests that have no answer yet.
    """

    owner: str
    session_id: str = field(default_factory=lambda: secrets.token_hex(12))
    seen: float = field(default_factory=time.monotonic)
    models: dict[str, Model] = field(default_factory=dict)
    samplers: dict[str, SamplingSession] = field(default_factory=dict)
    pending: int = 0

    def touch(self) -> None:
        self.seen = time.monotonic()
