"""Requests of sampling: samplers, and samples that are generated together."""

import functools
import secrets
import threading
from collections.abc import Sequence

from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields
from corerl_tinker.api import requests, wire
from corerl_tinker.api.futures import Answer, Future
from corerl_tinker.api.service import Service
from corerl_tinker.api.sessions import Model, Published, SamplingSession, Session
from corerl_tinker.errors import UserError
from corerl_tinker.training.clients import State
from corerl_tinker.training.sampler import SampleRequest, SampleResult

Batch = list[tuple[SampleRequest, Future]]


class Samples:
    """Samples of one session with the same weights, which wait at the same time, are generated together.

    Samples of two sessions never are: what a client gets does not depend on other clients.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._base = Published(service.trainer.base())
        self._open: dict[tuple[str, int], Batch] = {}
        """of a session and its weights, the batch that has not begun"""
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
        key = (session.session_id, id(published))
        session.pending += 1
        with self._lock:
            if (batch := self._open.get(key)) is not None:
                batch.append((request, future))
                return
            batch = self._open[key] = [(request, future)]
        call = functools.partial(self._generate, key, published, batch)
        done = functools.partial(self._distribute, session, key, batch)
        self._service.compute.submit(session.lane, call).add_done_callback(done)

    def _generate(self, key: tuple[str, int], published: Published, batch: Batch) -> Sequence[SampleResult]:
        """In the computing thread."""
        with self._lock:
            self._open.pop(key, None)
        if published.state is None and published.load is not None:
            published.load()
        if published.state is None:
            newer = f"the model has saved {self._service.options.keep_samplers} newer ones (tinker.keep_samplers)"
            raise UserError(f"the weights of this sampler were dropped: {newer}")
        return self._service.sampler.sample(published.state, [request for request, _ in batch])

    def _distribute(self, session: Session, key: tuple[str, int], batch: Batch, computed: object) -> None:
        """In the event loop: give the results of a batch to its promises."""
        with self._lock:
            if self._open.get(key) is batch:  # the call was dropped before it began
                del self._open[key]
        session.pending -= len(batch)
        try:
            results: Sequence[SampleResult] = computed.result()  # type: ignore[attr-defined]
            for (request, future), result in zip(batch, results, strict=True):
                future.end(Answer(wire.write_sample_result(request, result), is_binary=True))
        except BaseException as error:  # the clients get it
            for _, future in batch:
                future.fail(error)
