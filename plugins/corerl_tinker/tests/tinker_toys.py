"""A server in threads of the test's process, and a client that writes its requests by hand."""

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import numpy as np

from corerl.contracts.config import ModelConfig, OptimConfig
from corerl.contracts.training_strategies import MicroBatching, StrategySpec
from corerl.plugins import load_plugins
from corerl_fsdp.single_device import SingleDeviceStrategy
from corerl_gateway.options import EndpointOptions
from corerl_gateway.services import ServeRequest
from corerl_testing.tiny_model import VOCABULARY, tiny_model
from corerl_tinker.api.messages import CLASSES
from corerl_tinker.api.server import Server
from corerl_tinker.compute import Compute
from corerl_tinker.options import TinkerOptions
from corerl_tinker.serving import build, owners, plan
from corerl_tinker.training.data import Datum, LossRequest
from corerl_tinker.training.trainer import Trainer

KEYS = ("tml-first-0123456789", "tml-second-0123456789")
SECONDS = 60


def spec(rank=4, **model):
    given = ModelConfig(path=str(tiny_model()), lora_rank=rank, lora_alpha=32, **model)
    return StrategySpec(given, "cpu", MicroBatching(max_tokens=128), OptimConfig())


def trainer(rank=4, strategy=SingleDeviceStrategy):
    return Trainer(strategy(spec(rank)), spec(rank), "torch")


def loss_request(loss="cross_entropy", seed=0, backward=True, **config):
    """Three data with random targets."""
    draw = np.random.default_rng(seed)
    data = []
    for length in (5, 9, 30):
        tokens = draw.integers(0, VOCABULARY, length)
        shape = (length, 1)
        names = ("weights",) if loss == "cross_entropy" else ("logprobs", "advantages")
        inputs = {name: draw.normal(size=shape).astype(np.float32) for name in names}
        if "logprobs" in inputs:
            inputs["logprobs"] -= 5
        data.append(Datum(tokens, draw.integers(0, VOCABULARY, shape), inputs, True))
    return LossRequest(loss, config, data, backward)


@contextlib.contextmanager
def running(folder, rank=4, max_body_mb=4.0, values=None, **options):
    """A server; ``stop()`` ends it early."""
    model = str(tiny_model())
    values = {"model": {"path": model, "lora_rank": rank}, "actor": {"device": "cpu"}, **(values or {})}
    request = ServeRequest(values, load_plugins(), None, 0, None)
    planned = plan(request, TinkerOptions(folder=str(folder), **options))
    runtime = planned.runtime.load()(planned.config.runtime)
    compute, ready = Compute(), threading.Event()
    served = SimpleNamespace(model=model, url=None, service=None, compute=compute)

    async def main():
        served.service = await compute.submit("start", lambda: build(planned, runtime, compute))
        stopping, started = asyncio.Event(), asyncio.get_running_loop().create_future()
        served.loop = loop = asyncio.get_running_loop()
        served.stop = lambda: loop.call_soon_threadsafe(stopping.set)
        serving = Server(served.service, EndpointOptions(max_body_mb=max_body_mb), owners(KEYS))
        work = loop.create_task(serving.run(stopping, started))
        served.url = await started
        ready.set()
        await work

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield served
    finally:
        with contextlib.suppress(RuntimeError):  # it was stopped
            served.stop()
        thread.join(SECONDS)
        assert compute.close(SECONDS) and not thread.is_alive()
        runtime.close()


class Refused(Exception):
    """An answer with an error's status, or a failed result."""

    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


def send(url, key, path, body, method="POST", **headers):
    """(content type, body) of an answer."""
    given = {"X-API-Key": key, "Content-Type": "application/json", **headers}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api/v1/{path}", data, given, method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as error:
        with error:
            raise Refused(error.code, json.loads(error.read() or b"{}").get("detail", "")) from None


class Client:
    """A session, and its models."""

    def __init__(self, url, key):
        self.url, self.key = url, key
        self.session = self.post("create_session", tags=[], user_metadata={}, sdk_version="0")["session_id"]
        self.models = 0
        self.seqs = {}

    def post(self, name, /, **values):
        return json.loads(send(self.url, self.key, name, values)[1])

    def result(self, promise):
        """The result of a promise, JSON or a binary message.

        Raises:
            Refused: it failed; the status is the category of the error.
        """
        body = {"request_id": promise["request_id"]}
        accept = {"Accept": "application/x-protobuf"}
        while True:
            try:
                kind, answer = send(self.url, self.key, "retrieve_future", body, **accept)
            except Refused as error:
                if error.status != 408:
                    raise
                continue
            break
        if "protobuf" in kind:
            return answer
        values = json.loads(answer)
        if "error" in values:
            raise Refused(values["category"], values["error"])
        return values

    def create(self, model, rank=2, seed=0, **more):
        config = {"rank": rank, "seed": seed, **more}
        number, self.models = self.models, self.models + 1
        asked = {"session_id": self.session, "model_seq_id": number, "base_model": model, "lora_config": config}
        model_id = self.result(self.post("create_model", **asked))["model_id"]
        self.seqs[model_id] = 0
        return model_id

    def finish(self):
        self.post(f"sessions/{self.session}/finish", reason={"type": "success"})

    def seq(self, model_id):
        self.seqs[model_id] += 1
        return self.seqs[model_id]

    def call(self, name, model_id, /, **values):
        return self.post(name, model_id=model_id, seq_id=self.seq(model_id), **values)

    def backward(self, model_id, *data, loss="cross_entropy", seq=None, **config):
        """A promise; data are made by :func:`datum`."""
        message = CLASSES["ForwardBackwardRequest"](model_id=model_id, loss_fn=loss)
        message.seq_id = self.seq(model_id) if seq is None else seq
        message.data.extend(data)
        for name, value in config.items():
            message.loss_fn_config[name] = value
        return json.loads(send(self.url, self.key, "forward_backward", message.SerializeToString())[1])

    def step(self, model_id, **values):
        return self.call("optim_step", model_id, adam_params={"learning_rate": 1e-2, **values})

    def loss(self, promise):
        message = CLASSES["ForwardBackwardOutput"]()
        message.ParseFromString(self.result(promise))
        return message.metrics["loss:sum"]


def datum(tokens=range(40, 50), targets=None, **inputs):
    """A binary datum; targets are the tokens shifted by one, weights 1."""
    tokens = list(tokens)
    message = CLASSES["Datum"]()
    message.model_input.add().encoded_text.tokens = np.asarray(tokens, np.int32).tobytes()
    targets = np.asarray([*tokens[1:], 7] if targets is None else targets, np.int64)
    given = {"weights": np.ones(len(targets), np.float32), **inputs} if "logprobs" not in inputs else inputs
    for name, values in {"target_tokens": targets, **given}.items():
        array = np.asarray(values)
        if name != "target_tokens":
            array = array.astype(np.float32)
        tensor = message.loss_fn_inputs[name]
        tensor.dense, tensor.dtype = array.tobytes(), 1 if array.dtype == np.float32 else 2
        tensor.shape.extend(array.shape)
    return message


def sampler_of(client, model_id, number=0):
    promise = client.call("save_weights_for_sampler", model_id, sampling_session_seq_id=number)
    return client.result(promise)["sampling_session_id"]


def sample(client, sampler, prompt, seq=0, n=1, params=None, **more):
    read = CLASSES["SampleResponse"]()
    asked = {
        "sampling_session_id": sampler,
        "seq_id": seq,
        "num_samples": n,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
        "sampling_params": {"max_tokens": 4, "seed": 1, **(params or {})},
    }
    read.ParseFromString(client.result(client.post("asample", **asked, **more)))
    return read


def tokens(sequence):
    return np.frombuffer(sequence.tokens, np.int32).tolist()
