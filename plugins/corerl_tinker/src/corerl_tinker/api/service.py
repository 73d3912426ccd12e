"""What clients have: sessions, models and the order of their requests."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from corerl_gateway.errors import ApiError
from corerl_tinker.api.futures import Answer, Future, Futures
from corerl_tinker.api.sessions import Model, Session, Waiting
from corerl_tinker.api.wire import Limits
from corerl_tinker.compute import Compute
from corerl_tinker.errors import UserError
from corerl_tinker.options import TinkerOptions
from corerl_tinker.training.checkpoints import Checkpoints
from corerl_tinker.training.clients import Clients, State
from corerl_tinker.training.sampler import Sampler
from corerl_tinker.training.states import Adapter

T = TypeVar("T")

OVER = "the session has ended"
STOPPING = "the server is stopping"


@dataclass(eq=False)
class Service:
    """Everything behind the HTTP interface. Its methods run in the event loop; models compute in ``compute``'s thread.

    Attributes:
        name: of the base model.
        stop_token_ids: that end a sample without stops of its own.
    """

    trainer: Clients
    sampler: Sampler
    compute: Compute
    checkpoints: Checkpoints
    limits: Limits
    options: TinkerOptions
    name: str
    stop_token_ids: tuple[int, ...] = ()
    futures: Futures = field(default_factory=Futures)
    sessions: dict[str, Session] = field(default_factory=dict)

    def create_session(self, owner: str) -> Answer:
        session = Session(owner)
        self.sessions[session.session_id] = session
        return Answer.of(type="create_session", session_id=session.session_id, info_message=self._described())

    def find_session(self, owner: str, session_id: str) -> Session:
        """
        Raises:
            ApiError: 410: it is over, or another owner's.
        """
        session = self.sessions.get(session_id)
        if session is None or session.owner != owner:
            raise ApiError(410, f"there is no session {session_id!r:.80}: it has ended, or never was")
        session.touch()
        return session

    def find_model(self, owner: str, model_id: str) -> tuple[Session, Model]:
        """
        Raises:
            ApiError: 404: there is no such model of this owner.
        """
        for session in self.sessions.values():
            if session.owner == owner and model_id in session.models:
                session.touch()
                return session, session.models[model_id]
        raise ApiError(404, f"there is no model {model_id!r:.120}: its session has ended, or it never was")

    def check_base_model(self, name: str) -> None:
        """
        Raises:
            ApiError: 400: this server has another one.
        """
        if name != self.name:
            raise ApiError(400, f"base_model {name!r:.120} is not served here: this server has {self.name!r}")

    def new_model(
        self, session: Session, number: int, adapter: Adapter, make: Callable[[], State], **answer: Any
    ) -> Answer:
        """A promise of a model; the same number again gets the same promise.

        Raises:
            ApiError: 400: there are too many models.
        """
        model_id = f"{session.session_id}:train:{number}"
        if (known := self.futures.find(model_id)) is not None:
            return known.promise()
        if model_id in session.models:
            raise ApiError(400, f"there is a model {model_id} already")
        if sum(len(each.models) for each in self.sessions.values()) >= self.options.max_models:
            most = f"{self.options.max_models} models are trained already (tinker.max_models)"
            raise ApiError(400, f"{most}: end a session")
        model = session.models[model_id] = Model(model_id, session.session_id, adapter)
        future = self.futures.add(Future(model_id, session.session_id, session.owner, {"model_id": model_id}))

        def build() -> State | UserError:
            try:
                return make()
            except UserError as error:
                return error

        def made(built: State | UserError) -> Answer:
            if isinstance(built, UserError):
                session.models.pop(model_id, None)
                raise built
            model.state = built
            return Answer.of(model_id=model_id, **answer)

        self.compute_for(session, future, model_id, build, made)
        return future.promise()

    def in_order(
        self, session: Session, model: Model, seq: int | None, call: Callable[[], T], finish: Callable[[T], Answer]
    ) -> Answer:
        """A promise of a model's request, which is computed after those with smaller numbers.

        Args:
            call: in the computing thread.
            finish: makes the answer, in the event loop.

        Raises:
            ApiError: 400: it has no number; 429: too many wait.
            UserError: the number was used by a request whose answer is dropped.
        """
        if seq is None or seq < 1:
            raise ApiError(400, "'seq_id' must be a whole number, 1 or more")
        request_id = f"{model.model_id}:{seq}"
        if (known := self.futures.find(request_id)) is not None:  # sent again after a lost answer
            return known.promise()
        self.check_room(session)
        future = Future(request_id, session.session_id, session.owner, {"model_id": model.model_id})
        start = functools.partial(self.compute_for, session, future, model.model_id, call, finish)
        model.take(seq, Waiting(start, future.fail))
        return self.futures.add(future).promise()

    def compute_for(
        self, session: Session, future: Future, lane: str, call: Callable[[], T], finish: Callable[[T], Answer]
    ) -> None:
        """Compute the answer of a promise."""
        session.pending += 1

        def done(computed: Any) -> None:
            session.pending -= 1
            try:
                future.end(finish(computed.result()))
            except BaseException as error:  # the client gets it
                future.fail(error)

        self.compute.submit(lane, call).add_done_callback(done)

    def check_room(self, session: Session) -> None:
        """
        Raises:
            ApiError: 429, on which clients wait: too many requests have no answer.
        """
        pending = session.pending + sum(len(model.waiting) for model in session.models.values())
        if pending >= self.options.max_pending:
            raise ApiError(429, f"{pending} requests wait (tinker.max_pending): send the next one later")

    def end_session(self, session: Session, why: str = OVER) -> None:
        """Free the models of a session, and fail its requests."""
        self.sessions.pop(session.session_id, None)
        for lane in session.models:
            self.compute.drop(lane, why)
        for model in session.models.values():
            model.state = None
        for future in self.futures.pending():
            if future.session_id == session.session_id:
                future.fail(UserError(why))
        session.models.clear()
        session.samplers.clear()

    def tidy(self) -> None:
        """End sessions without a sign of life, give up requests out of order, and drop old results."""
        now = time.monotonic()
        for session in list(self.sessions.values()):
            if now - session.seen > self.options.session_timeout:
                self.end_session(session, f"{OVER}: no heartbeat came for {self.options.session_timeout:g} s")
            for model in session.models.values():
                model.give_up(self.options.order_timeout)
        self.futures.forget()

    def fail_all(self) -> None:
        """Fail all requests: the server stops."""
        for future in self.futures.pending():
            future.end(Answer.of(error=STOPPING, category="server"))

    def _described(self) -> str:
        rank = self.trainer.spec.model.lora_rank
        if not self.trainer.facts.is_lora:
            return f"{self.name}: all weights are trained; settings of adapters have no effect"
        head = "" if self.trainer.facts.has_head else "; the output layer is not trained (train_unembed has no effect)"
        return f"{self.name}: adapters of rank {rank} or less{head}"
