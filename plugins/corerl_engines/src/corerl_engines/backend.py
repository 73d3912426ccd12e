"""The trainer's side of a rollout backend whose engine runs in another process."""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from corerl.contracts.config import ModelConfig, RolloutConfig
from corerl.contracts.pieces import Box
from corerl.contracts.rollout_backends import Completion, EngineLoad, GenerationRequest, OnFinished
from corerl.errors import RunError
from corerl.models import compute_dtype
from corerl.terminal import say
from corerl_engines import nodes
from corerl_engines.adapters import takes
from corerl_engines.images import check_images
from corerl_engines.installed import Versions, check_version
from corerl_engines.messages import completions_of, described
from corerl_engines.options import EngineOptions, check_record
from corerl_engines.parallel import check_parallel
from corerl_engines.process import Answer, EngineKind, EngineProcess
from corerl_engines.weights import (
    DeviceBucket,
    ExpectedWeights,
    HostBucket,
    Layout,
    SharedBucket,
    described_slot,
    device_uuid,
)
from corerl_torch.weights import Slot, place
from corerl_torch.weights.digest import digest
from corerl_torch.weights.pieces import Round

FLOAT32_VARIABLES = {"TRITON_F32_DEFAULT": "ieee"}
"""for an engine that computes in float32: Triton's default would use 10 bits of the mantissa"""


class EngineBackend:
    """See :class:`corerl.contracts.rollout_backends.RolloutBackend`.

    Calls share the engine's batch. An update pauses running requests; their later tokens come from the new weights. The
    weights loaded from ``model.path`` have version 0.
    """

    def __init__(
        self,
        kind: EngineKind,
        tested: Versions,
        model: ModelConfig,
        rollout: RolloutConfig,
        device: str,
        options: EngineOptions,
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> None:
        """Start the engine's process; :meth:`started` waits until the engine can generate, as every call does.

        Args:
            tested: tested versions of the engine.
            environment: variables for the engine's process.
            settings: settings for the plugin's adaptor.

        Raises:
            ConfigError: no such interpreter; the model cannot be split over the GPUs; kept sets have no limit.
        """
        check_record(rollout)
        self._kind, self._tested, self._options = kind, tested, options
        settings = {"record": list(rollout.record), "top_log_probs": rollout.top_log_probs, **settings}
        settings |= {"tokenizer": _absolute(model.tokenizer_path or model.path)[0]}
        settings |= {"trust_remote_code": model.trust_remote_code}
        self._dtype = compute_dtype(model, device)
        self._model, self._adapters = model, rollout.adapters if takes(model, rollout) else 0
        if (gpus := rollout.gpus_per_engine) > 1:
            nodes.check_nodes(kind, gpus)
            check_parallel(self._expected.config, rollout, device, len(nodes.here))
        loaded = "dummy" not in (model.load_format, options.load_format)
        self._shared: list[SharedBucket] = []
        self._layout: Layout | None = None
        self._process = EngineProcess(
            kind,
            options.python,
            environment if not nodes.here.others else {**nodes.variables(kind, nodes.here.address), **environment},
            {"loaded": loaded, "adapters": max(1, self._adapters), **settings, **nodes.here.settings()},
            options.patience,
            None if options.log_folder is None else Path(options.log_folder),
            [
                nodes.Follower(node, rank, kind, options.python, environment)
                for rank, node in enumerate(nodes.here.others, 1)
            ],
        )
        self._ready: dict[str, Any] = {}
        """the facts of an engine that has started"""
        try:
            _ = self._expected  # built in the thread of the models: others may not seed torch meanwhile
        except BaseException:
            self._process.close()
            raise

    @functools.cached_property
    def _expected(self) -> ExpectedWeights:
        return ExpectedWeights(self._model, adapters=self._adapters > 0)

    def is_starting(self) -> bool:
        """Whether the engine still starts; False once it can generate, and once it has failed."""
        return not self._ready and self._process.is_starting()

    def started(self) -> None:
        """Wait until the engine can generate.

        Raises:
            DeadlineError: the start took longer than ``start_timeout``; the process was killed.
            RunError: the engine is missing or of an untested version, or did not start.
        """
        if self._ready:
            return
        seconds, title = self._options.start_timeout, self._kind.title
        try:
            what = f"importing {title} (rollout.options.start_timeout)"
            version = self._process.wait_for("imported", seconds, what)["version"]
            check_version(version, self._kind, self._tested, self._options.untested_version)
            what = f"the start of the {title} engine (rollout.options.start_timeout)"
            self._ready = self._process.wait_for("ready", seconds, what)
        except BaseException:
            self._process.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the engine's process, which leads a group of its own."""
        return self._process.pid

    async def generate(
        self, requests: Sequence[GenerationRequest], on_finished: OnFinished | None = None
    ) -> list[list[Completion]]:
        """Generate, with one call for each request; if a request is cancelled or fails, the others are ended.

        Raises:
            RunError: the engine is dead or closed, it has no weights, or a prompt does not fit the model.
        """
        self.started()
        for request in requests:
            request.check_prompt(int(self._ready["vocabulary"]))
            if not 0 <= request.adapter < max(1, self._adapters):
                raise RunError(f"request '{request.request_id}' has adapter {request.adapter}: raise rollout.adapters")
            if request.media:
                check_images(self._expected.config.model_type, self._kind)
        calls = [
            asyncio.create_task(self._complete(position, request, on_finished))
            for position, request in enumerate(requests)
        ]
        try:
            return await asyncio.gather(*calls)
        except BaseException:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            raise

    def update_weights(self, weights: Iterable[tuple[str, Tensor]], version: int, *, verify: bool = False) -> None:
        """Send all weights: over a CUDA device that the engine sees, else over host memory.

        Raises:
            RunError: a tensor is missing, unknown or of another shape, or was changed on the way: running calls end,
                and generation fails until a complete update.
            DeadlineError: the engine did not answer within ``timeout`` seconds, and was killed.
        """
        with self._update(version) as adapter:
            if self._adapters:
                self._send_adapter(list(weights), adapter, verify)
            else:
                self._send(self._expected.checked(weights), adapter, verify)

    @contextlib.contextmanager
    def _update(self, version: int) -> Iterator[int]:
        """Within, the engine takes new weights, of the yielded adapter; a failure ends running calls."""
        self.started()
        adapter = version % max(1, self._adapters)
        try:
            self._process.ask("begin_update", self._options.timeout, adapter=adapter)
            yield adapter
        except BaseException:
            with contextlib.suppress(RunError):  # the engine may be dead
                self._process.ask("end_update", self._options.timeout, version=None)
            raise
        missing = self._process.ask("end_update", self._options.timeout, version=version)["missing"]
        if missing:
            raise RunError(
                f"no tensor of the update filled the engine's weight '{missing[0]}' (of {len(missing)} such)"
            )

    def needs(self, weights: Sequence[tuple[str, Sequence[int], str]]) -> list[dict[str, list[Box]]] | None:
        """See :class:`corerl_torch.weights.pieces.ShardedBackend`; adapters and quantised layers take whole weights.

        Raises:
            RunError: a weight is missing, unknown or of another shape.
        """
        self.started()
        if self._adapters or self._options.quantization != "none":
            return None
        deque(self._expected.checked((name, torch.empty(tuple(s), device="meta")) for name, s, _ in weights), maxlen=0)
        asked = [[name, list(shape), dtype] for name, shape, dtype in weights]
        found = self._process.ask("needs", self._options.timeout, weights=asked)["needs"]
        if found is None:
            say(f"{self._kind.title} does not state the parts of weights that its ranks need: whole weights are sent")
            return None
        return [
            {name: [tuple((start, stop) for start, stop in box) for box in boxes] for name, boxes in of_rank.items()}
            for of_rank in found
        ]

    def expect(self, plans: Sequence[Mapping[str, Any]]) -> None:
        """See :class:`corerl_torch.weights.pieces.ShardedBackend`."""
        self._process.ask("expect", self._options.timeout, plans=list(plans))

    def update_pieces(self, rounds: Iterable[Round], version: int, *, verify: bool = False) -> None:
        """As :meth:`update_weights`, from memory that the engine's ranks read themselves."""
        with self._update(version), ThreadPoolExecutor(1) as frees:
            before: Future[None] | None = None
            for each in rounds:
                places = [list(place) for place in each.places]
                _, loading = self._process.submit("take", round=each.number, places=places, verify=verify)
                if before is not None:
                    before.result()
                before = frees.submit(self._taken, loading, each.done)  # even if the next round is not here yet
            if before is not None:
                before.result()

    def _taken(self, loading: Future[Answer], done: Callable[[], None]) -> None:
        """Wait until a round is loaded; then its memory is free."""
        if changed := self._process.answer(loading, "loading weights", self._options.timeout)["changed"]:
            raise RunError(f"weight '{changed[0]}' arrived changed at the engine: its digest differs")
        done()

    def sleep(self) -> None:
        """Free the device's memory, if the engine can."""
        self.started()
        self._process.ask("sleep", self._options.timeout)

    def wake(self, *, kv_cache: bool = True) -> None:
        """Allocate the memory again; weights must be sent before generating."""
        self.started()
        self._process.ask("wake", self._options.timeout, kv_cache=kv_cache)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; unknown ids are ignored."""
        self.started()
        self._process.ask("abort", self._options.timeout, request_ids=list(request_ids))

    def health(self) -> None:
        """
        Raises:
            RunError: the engine is dead or closed.
        """
        self.started()
        self._process.ask("health", self._options.timeout)

    def start_profile(self, asked: Mapping[str, Any]) -> None:
        """For :class:`corerl_torch.profiling.steps.ProfiledBackend`."""
        self.started()
        self._process.ask("start_profile", self._options.timeout, asked=dict(asked))

    def stop_profile(self) -> None:
        """End the profile; the engine's processes write their files."""
        self._process.ask("stop_profile", self._options.timeout)

    def longest_sequence(self) -> int | None:
        """Largest number of tokens of prompt and response together, by the engine's report."""
        most = self._ready.get("context")
        return most if type(most) is int and most > 0 else None

    def engine_load(self) -> EngineLoad | None:
        """The engine's last report, four times a second during generation; None: it makes none."""
        return self._process.load

    def last_lines(self) -> str:
        """The last lines of the engine's log, and its path."""
        return self._process.last_lines()

    def close(self) -> None:
        """Kill the engine with all its processes."""
        self._process.close()
        self._close_buckets()

    async def _complete(
        self, position: int, request: GenerationRequest, on_finished: OnFinished | None
    ) -> list[Completion]:
        number, future = self._process.submit("generate", requests=[described(request)])
        try:
            header, payload = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._process.submit("cancel", call=number)
            raise
        completions = completions_of((self._process.checked(header), payload))
        if on_finished is not None:
            on_finished(position, completions)
        return completions

    def _send_adapter(self, given: list[tuple[str, Tensor]], adapter: int, verify: bool) -> None:
        """Send an adapter in one bucket, without a description of it if the engine has the same from its last update.

        An adapter of several buckets is sent as all weights are.
        """
        last, self._layout = self._layout, None  # of an update that fails, the engine may lack it
        size, checked = self._options.bucket_mb * 2**20, self._expected.checked
        layout = Layout.of(last, given, checked, size, self._dtype)
        if layout is None:
            self._send(iter(checked(given)), adapter, verify)
            return
        self._reserve(given[0][1].device)
        tensors = [tensor for _, tensor in given]
        lane = _Lane(self._shared[0], adapter, layout.slots)
        if verify:
            lane.given = [digest(tensor, slot.dtype) for tensor, slot in zip(tensors, layout.slots, strict=True)]
        lane.shared.write_together(layout.slots, tensors)
        self._submit(lane, verify, layout.tensors(adapter, kept=self._ready["keeps_layouts"]))
        self._wait_for(lane)
        self._layout = layout

    def _send(self, weights: Iterator[tuple[str, Tensor]], adapter: int, verify: bool) -> None:
        """Send the buckets one by one; with two, one is filled while the engine loads the other."""
        first = next(weights, None)
        if first is None:
            return
        self._reserve(first[1].device)
        lanes = [_Lane(shared, adapter) for shared in self._shared]
        turns = cycle(lanes)
        lane: _Lane | None = None
        for slot, tensor in place(chain([first], weights), self._options.bucket_mb * 2**20, self._dtype):
            if lane is None or slot.offset == 0:
                self._load(lane, verify)
                lane = next(turns)
                self._wait_for(lane)
            if verify:
                lane.given.append(digest(tensor, slot.dtype))
            lane.shared.write(slot, tensor)
            lane.slots.append(slot)
        self._load(lane, verify)
        for lane in lanes:
            self._wait_for(lane)

    def _load(self, lane: "_Lane | None", verify: bool) -> None:
        if lane is not None:
            self._submit(lane, verify, [described_slot(slot) for slot in lane.slots])

    def _submit(self, lane: "_Lane", verify: bool, tensors: list[dict[str, Any]] | None) -> None:
        lane.shared.arrive()
        bucket = {"source": lane.shared.source, "adapter": lane.adapter, "tensors": tensors}
        lane.loading = self._process.submit("load", bucket=bucket, verify=verify)[1]

    def _wait_for(self, lane: "_Lane") -> None:
        """Wait until the engine has loaded the bucket, which is then empty."""
        if lane.loading is not None:
            answer = self._process.answer(lane.loading, "loading weights", self._options.timeout)
            taken = torch.stack(lane.given).tolist() if lane.given else []
            for arrived in answer["digests"]:
                for slot, given, received in zip(lane.slots, taken, arrived, strict=True):
                    if given != received:
                        raise RunError(f"weight '{slot.name}' arrived changed at the engine: its digest differs")
        lane.loading, lane.slots, lane.given = None, [], []

    def _reserve(self, device: torch.device) -> None:
        """One bucket on the device of the tensors, if the engine sees it, or two in host memory."""
        uuid = device_uuid(device) if device.type == "cuda" else None
        wanted = [uuid] if uuid in self._ready["devices"] else [None, None]
        if [shared.source.get("device") for shared in self._shared] == wanted:
            return
        self._close_buckets()
        size = self._expected.bucket_size(self._options.bucket_mb * 2**20, self._dtype)
        self._shared = [DeviceBucket(size, device) if each else HostBucket(size) for each in wanted]

    def _close_buckets(self) -> None:
        for shared in self._shared:
            shared.close()
        self._shared = []


@dataclass
class _Lane:
    """A bucket, its contents, and the engine's answer to the order to load it."""

    shared: SharedBucket
    adapter: int
    slots: list[Slot] = field(default_factory=list)
    given: list[Tensor] = field(default_factory=list)
    loading: Future[Answer] | None = None


def model_arguments(model: ModelConfig) -> tuple[str, bool]:
    """The model's path for a process in another folder, and whether it is a local folder."""
    return _absolute(model.path)


def _absolute(path: str) -> tuple[str, bool]:
    folder = Path(path).expanduser()
    return (str(folder.absolute()), True) if folder.is_dir() else (path, False)
