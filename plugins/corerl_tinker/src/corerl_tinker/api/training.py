"""Requests of training: models, gradients, steps, saved weights."""

import functools
import time
from dataclasses import asdict

from corerl_gateway.fields import Fields
from corerl_tinker.api import requests, wire
from corerl_tinker.api.futures import Answer
from corerl_tinker.api.sampling import Samples
from corerl_tinker.api.service import Service
from corerl_tinker.api.sessions import Model, Session
from corerl_tinker.errors import UserError
from corerl_tinker.training.checkpoints import MOST_MODELS, SAMPLER, TRAINING, About, adapter_of
from corerl_tinker.training.clients import State
from corerl_tinker.training.states import Adapter
from corerl_tinker.training.trainer import LossResult


class Training:
    """Each method takes a request and gives a promise, or an answer; errors are UserError and ApiError."""

    def __init__(self, service: Service, samples: Samples) -> None:
        self._service, self._samples = service, samples

    def create_model(self, owner: str, fields: Fields) -> Answer:
        service = self._service
        session = service.find_session(owner, fields.text("session_id"))
        service.check_base_model(fields.text("base_model"))
        adapter = requests.adapter(fields, service.trainer.spec.model.lora_alpha)
        make = functools.partial(service.trainer.new_state, adapter)
        return service.new_model(session, _number(fields), adapter, make, type="create_model")

    def load_weights(self, owner: str, fields: Fields) -> Answer:
        """Into a new model of a session, or into a model."""
        service, address, optimizer = self._service, fields.text("path"), fields.flag("optimizer")
        if fields.text("session_id", ""):
            session = service.find_session(owner, fields.text("session_id"))
            service.check_base_model(fields.text("base_model", service.name))
            about = service.checkpoints.about(address, owner)
            adapter = adapter_of(about) or requests.adapter(fields, service.trainer.spec.model.lora_alpha)
            make = functools.partial(service.trainer.load, service.checkpoints, address, about, optimizer=optimizer)
            return service.new_model(session, _number(fields), adapter, make, type="load_weights", path=address)
        session, model = service.find_model(owner, fields.text("model_id"))

        def load() -> State:
            about = service.checkpoints.about(address, owner)
            if adapter_of(about) is not None and adapter_of(about) != model.adapter:
                raise UserError(f"{address} holds other adapters than {model.model_id}: create a model from it")
            state = service.trainer.load(service.checkpoints, address, about, optimizer=optimizer)
            model.state = state
            return state

        def loaded(_: State) -> Answer:
            return Answer.of(type="load_weights", path=address, model_id=model.model_id)

        return service.in_order(session, model, fields.whole("seq_id", 1), load, loaded)

    def info(self, owner: str, fields: Fields) -> Answer:
        _, model = self._service.find_model(owner, fields.text("model_id"))
        spec, name = self._service.trainer.spec, self._service.name
        is_lora = self._service.trainer.facts.is_lora
        rank = model.adapter.rank if is_lora else None
        return Answer.of(
            type="get_info",
            model_id=model.model_id,
            model_name=name,
            is_lora=is_lora,
            lora_rank=rank,
            model_data={"model_name": name, "tokenizer_id": spec.model.tokenizer_path or spec.model.path},
        )

    def forward_backward(self, owner: str, body: bytes) -> Answer:
        """From a binary message."""
        service, message = self._service, wire.parse_forward_backward(body)
        session, model = service.find_model(owner, message.model_id)

        def run() -> LossResult:
            return service.trainer.forward_backward(model.trained(), wire.read_loss_request(message, service.limits))

        def finish(result: LossResult) -> Answer:
            return Answer(wire.write_loss_result(result), is_binary=True)

        return service.in_order(session, model, message.seq_id, run, finish)

    def optim_step(self, owner: str, fields: Fields) -> Answer:
        service = self._service
        session, model = service.find_model(owner, fields.text("model_id"))

        def run() -> float:
            return service.trainer.optim_step(model.trained(), requests.adam_step(fields))

        def finish(norm: float) -> Answer:
            return Answer.of(metrics={"grad_norm:mean": norm})

        return service.in_order(session, model, fields.whole("seq_id", 1), run, finish)

    def save_weights(self, owner: str, fields: Fields) -> Answer:
        """To continue training from."""
        session, model = self._service.find_model(owner, fields.text("model_id"))
        seq = fields.whole("seq_id", 1)

        def run() -> str:
            name, overwrite = fields.text("path", f"{seq:06d}"), fields.flag("overwrite")
            return self._save(session, model, fields, TRAINING, name, overwrite=overwrite)

        return self._service.in_order(session, model, seq, run, lambda path: Answer.of(type="save_weights", path=path))

    def save_for_sampler(self, owner: str, fields: Fields) -> Answer:
        """To files by a name, or to a new sampler."""
        service = self._service
        session, model = service.find_model(owner, fields.text("model_id"))
        name, seq = fields.text("path", ""), fields.whole("seq_id", 1)
        kind = "save_weights_for_sampler"
        if name:

            def save() -> str:
                return self._save(session, model, fields, SAMPLER, name, overwrite=False)

            return service.in_order(session, model, seq, save, lambda path: Answer.of(type=kind, path=path))
        number, is_inflight = (
            fields.whole("sampling_session_seq_id", 0, 2**53) or 0,
            fields.text("kind", "") == "inflight",
        )

        def snapshot() -> State:
            return service.trainer.snapshot(model.trained())

        def publish(state: State) -> Answer:
            sampler = self._samples.publish(session, model, number, state, is_inflight=is_inflight)
            return Answer.of(type=kind, sampling_session_id=sampler.sampler_id)

        return service.in_order(session, model, seq, snapshot, publish)

    def _save(self, session: Session, model: Model, fields: Fields, kind: str, name: str, *, overwrite: bool) -> str:
        service = self._service
        address = service.checkpoints.address(model.model_id, kind, name)
        adapter: Adapter | None = model.adapter if service.trainer.facts.is_lora else None
        about = About(
            service.name,
            session.owner,
            asdict(adapter) if adapter else None,
            time.time(),
            requests.expiry(fields),
            requests.metadata(fields),
        )
        service.trainer.save(
            service.checkpoints, address, about, model.trained(), optimizer=kind == TRAINING, overwrite=overwrite
        )
        return address


def _number(fields: Fields) -> int:
    return fields.whole("model_seq_id", 0, MOST_MODELS - 1) or 0
