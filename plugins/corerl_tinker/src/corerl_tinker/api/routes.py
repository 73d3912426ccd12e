"""The paths of Tinker's interface."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from corerl_gateway.errors import ApiError
from corerl_gateway.fields import Fields, parse
from corerl_tinker.api.futures import Answer
from corerl_tinker.api.sampling import Samples
from corerl_tinker.api.service import Service
from corerl_tinker.api.training import Training
from corerl_tinker.training.checkpoints import SCHEME, TRAINING, About

PREFIX = "/api/v1/"

Handler = Callable[[str, Fields], Answer]
"""(owner, the JSON of a request) -> its answer"""

CLIENT_CONFIG = {
    "pjwt_auth_enabled": False,
    "parallel_fwdbwd_chunks": True,
    "proto_compress_fwdbwd": False,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": True,
    "sample_enable_stuck_detection": False,
}
"""switches of the SDK; it has defaults for others"""


class Routes:
    """Finds the handler of a request."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._samples = Samples(service)
        training, samples = Training(service, self._samples), self._samples
        self._training = training
        self._posts: dict[str, Handler] = {
            "client/config": lambda owner, fields: Answer.of(**CLIENT_CONFIG),
            "client/dynamic_config": lambda owner, fields: Answer.of(sample_cancel_enabled=False),
            "telemetry": lambda owner, fields: Answer.of(status="accepted"),
            "create_session": lambda owner, fields: service.create_session(owner),
            "session_heartbeat": self._heartbeat,
            "create_model": training.create_model,
            "get_info": training.info,
            "optim_step": training.optim_step,
            "save_weights": training.save_weights,
            "save_weights_for_sampler": training.save_for_sampler,
            "load_weights": training.load_weights,
            "create_sampling_session": samples.create_sampler,
            "join_sampling_session": samples.join,
            "asample": samples.sample,
            "weights_info": self._weights_info,
        }

    def post(self, owner: str, path: str, body: bytes) -> Answer:
        """
        Raises:
            ApiError, UserError: the request is wrong.
        """
        if path == "forward_backward":
            return self._training.forward_backward(owner, body)
        if (found := re.fullmatch(r"sessions/([^/]+)/finish", path)) is not None:
            self._service.end_session(self._service.find_session(owner, found[1]))
            return Answer.of()
        if path not in self._posts:
            raise ApiError(404, f"POST {PREFIX}{path:.120} is not served here")
        return self._posts[path](owner, Fields(parse(body)))

    def get(self, owner: str, path: str) -> Answer:
        """
        Raises:
            ApiError, UserError: the request is wrong.
        """
        service = self._service
        if path == "healthz":
            return Answer.of(status="ok")
        if path == "get_server_capabilities":
            model = {"model_name": service.name, "max_context_length": service.limits.length}
            return Answer.of(supported_models=[{**model, "trainable": True, "sampleable": True}])
        if (found := re.fullmatch(r"samplers/([^/]+)", path)) is not None:
            return self._samples.info(owner, found[1])
        if (found := re.fullmatch(r"training_runs/([^/]+)/checkpoints", path)) is not None:
            listed = service.checkpoints.list(found[1], owner)
            return Answer.of(checkpoints=[_listed(*each) for each in listed])
        raise ApiError(404, f"GET {PREFIX}{path:.120} is not served here")

    def delete(self, owner: str, path: str) -> Answer:
        """
        Raises:
            ApiError, UserError: the request is wrong.
        """
        if (found := re.fullmatch(r"training_runs/([^/]+)/checkpoints/([^/]+/[^/]+)", path)) is not None:
            self._service.checkpoints.delete(f"{SCHEME}{found[1]}/{found[2]}", owner)
            return Answer.of()
        raise ApiError(404, f"DELETE {PREFIX}{path:.120} is not served here")

    def _heartbeat(self, owner: str, fields: Fields) -> Answer:
        self._service.find_session(owner, fields.text("session_id"))
        return Answer.of(type="session_heartbeat")

    def _weights_info(self, owner: str, fields: Fields) -> Answer:
        about = self._service.checkpoints.about(fields.text("tinker_path"), owner)
        adapter = dict(about.adapter or {})
        trained = {name: adapter.get(name) for name in ("train_unembed", "train_mlp", "train_attn")}
        return Answer.of(
            base_model=about.base_model, is_lora=about.adapter is not None, lora_rank=adapter.get("rank"), **trained
        )


def _listed(address: str, about: About, size: int) -> dict[str, Any]:
    kind, name = address.split("/")[-2:]
    return {
        "checkpoint_id": f"{kind}/{name}",
        "checkpoint_type": "training" if kind == TRAINING else "sampler",
        "time": _time(about.created),
        "tinker_path": address,
        "size_bytes": size,
        "user_metadata": dict(about.user_metadata),
        "expires_at": None if about.expires is None else _time(about.expires),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
