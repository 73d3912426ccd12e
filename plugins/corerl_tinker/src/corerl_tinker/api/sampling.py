"""Requests of sampling: samplers, and samples that are generated together."""

import secrets
import threading
from dataclasses import dataclass, field

from corerl.errors import RunError
from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields
from corerl_tinker.api import requests, wire
from corerl_tinker.api.futures import Answer, Future
from corerl_tinker.api.service import OVER, Service
from corerl_tinker.api.sessions import Model, Published, SamplingSession, Session
from corerl_tinker.errors import UserError
from corerl_tinker.training.clients import State
from corerl_tinker.training.sampler import Group, SampleRequest, SampleResult

LANE = "samples"
"""of all sessions, in the computing thread"""


@dataclass(eq=False)
class Batch:
    """Requests of one session with the same weights, which wait at the same time."""

    session: Session
    published: Published
    asked: list[tuple[SampleRequest, Future]] = field(default_factory=list)


Computed = list[tuple[Batch, list[SampleResult] | Exception]]


class Samples:
    """Samples that wait at the same time are generated together, those of each session and its weights as one group.

    What a client gets does not depend on other groups: see :class:`corerl_tinker.training.sampler.Sampler`.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._base = Published(service.trainer.base())
        self._open: dict[tuple[str, int], Batch] = {}
        """of a session and its weights, the batch that has not begun"""
        self._is_asked = False
        """the computing thread will take the open batches"""
        self._lock = threading.Lock()

    def create_sampler(self, owner: str, fields: Fields) -> Answer:
        service = self._service
        session = service.find_session(owner, fields.text("session_id"))
        number, address = fields.whole("sampling_session_seq_id", 0) or 0, fields.text("model_path", "")
        if address:
            about = service.checkpoints.about(address, owner)
            published = Published(None, address)

            def load() -> None:
                published.state = service.trainer.load(service.checkpoints, address, about, optimizer=False)

            published.load = load
        else:
            service.check_base_model(fields.text("base_model"))
            published = self._base
        sampler = self._add(session, number, published)
        return Answer.of(type="create_sampling_session", sampling_session_id=sampler.sampler_id)

    def publish(
        self, session: Session, model: Model, number: int, state: State, *, is_inflight: bool
    ) -> SamplingSession:
        """A sampler of a model's weights in memory."""
        published = model.inflight if is_inflight else None
        if published is None:
            published = Published(state)
        published.state = state
        if is_inflight:
            model.inflight = published
        else:
            model.unnamed.append(published)
            kept = self._service.options.keep_samplers
            for old in model.unnamed[:-kept]:
                old.state = None
            del model.unnamed[:-kept]
        return self._add(session, number, published)

    def _add(self, session: Session, number: int, published: Published) -> SamplingSession:
        sampler_id = f"{session.session_id}:sample:{number}"
        if sampler_id not in session.samplers:
            session.samplers[sampler_id] = SamplingSession(sampler_id, session.session_id, published)
        return session.samplers[sampler_id]

    def find(self, owner: str, sampler_id: str) -> tuple[Session, SamplingSession]:
        """
        Raises:
            ApiError: 404: there is no such sampler of this owner.
        """
        for session in self._service.sessions.values():
            if session.owner == owner and sampler_id in session.samplers:
                session.touch()
                return session, session.samplers[sampler_id]
        raise ApiError(404, f"there is no sampler {sampler_id!r:.120}: its session has ended, or it never was")

    def info(self, owner: str, sampler_id: str) -> Answer:
        _, sampler = self.find(owner, sampler_id)
        address = sampler.published.address or None
        return Answer.of(sampler_id=sampler_id, base_model=self._service.name, model_path=address)

    def join(self, owner: str, fields: Fields) -> Answer:
        """A number for a copy of a client."""
        _, sampler = self.find(owner, fields.text("sampling_session_id"))
        sampler.clones += 1
        return Answer.of(type="join_sampling_session", client_counter=sampler.clones)

    def sample(self, owner: str, fields: Fields) -> Answer:
        """A promise of samples."""
        service = self._service
        session, sampler = self.find(owner, fields.text("sampling_session_id"))
        seq = fields.whole("seq_id", 0)
        request_id = f"{sampler.sampler_id}:{secrets.token_hex(8) if seq is None else seq}"
        if (known := service.futures.find(request_id)) is not None:  # sent again after a lost answer
            return known.promise()
        service.check_room(session)
        request = requests.sample(fields, service.limits, service.stop_token_ids)
        ids = [f"{request_id}:{number}" for number in range(request.sampling.n)]
        more = {"sample_sequence_ids": ids}
        future = service.futures.add(Future(request_id, session.session_id, owner, more))
        self._enqueue(session, sampler.published, request, future)
        return future.promise()

    def _enqueue(self, session: Session, published: Published, request: SampleRequest, future: Future) -> None:
        session.pending += 1
        with self._lock:
            key = (session.session_id, id(published))
            self._open.setdefault(key, Batch(session, published)).asked.append((request, future))
            if self._is_asked:
                return
            self._is_asked = True
        self._service.compute.submit(LANE, self._generate).add_done_callback(self._distribute)

    def _take(self) -> list[Batch]:
        """The open batches."""
        with self._lock:
            taken, self._open, self._is_asked = list(self._open.values()), {}, False
        return taken

    def _generate(self) -> Computed:
        """In the computing thread: samples of each batch, or its error."""
        done: Computed = []
        batches, groups = list[Batch](), list[Group]()
        for batch in self._take():
            try:
                group = Group(self._weights(batch), [request for request, _ in batch.asked])
            except Exception as error:
                done.append((batch, error))
            else:
                batches.append(batch)
                groups.append(group)
        try:
            results = self._service.sampler.sample(groups)
        except BaseException as error:  # of the server; the clients get it
            results = [RunError(f"{type(error).__name__} in the server: {error}")] * len(groups)
        return done + list(zip(batches, results, strict=True))

    def _weights(self, batch: Batch) -> State:
        """The state of a batch.

        Raises:
            UserError: it was dropped, cannot be loaded, or its session has ended.
        """
        published = batch.published
        if batch.session.session_id not in self._service.sessions:
            raise UserError(OVER)
        if published.state is None and published.load is not None:
            published.load()
        if published.state is None:
            newer = f"the model has saved {self._service.options.keep_samplers} newer ones (tinker.keep_samplers)"
            raise UserError(f"the weights of this sampler were dropped: {newer}")
        return published.state

    def _distribute(self, computed: object) -> None:
        """In the event loop: give the results to their promises."""
        try:
            results: Computed = computed.result()  # type: ignore[attr-defined]
        except BaseException as error:  # it did not begin: the server stops
            failure = error if isinstance(error, Exception) else RunError(f"{type(error).__name__} in the server")
            results = [(batch, failure) for batch in self._take()]
        for batch, own in results:
            batch.session.pending -= len(batch.asked)
            for number, (request, future) in enumerate(batch.asked):
                if isinstance(own, Exception):
                    future.fail(own)
                else:
                    future.end(Answer(wire.write_sample_result(request, own[number]), is_binary=True))
