"""Checks of a training strategy between its updates: saving, moving, sending weights, exporting."""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from corerl.contracts.config import ModelConfig
from corerl.contracts.throughput import ModelShape
from corerl.contracts.token_outputs import Output
from corerl.contracts.training_strategies import TrainingStrategy, TrainingStrategyFactory
from corerl.data import load_tokenizer
from corerl.data.report import Location
from corerl.registry import Selected
from corerl_testing.deadline import within
from corerl_testing.results import CheckFailed
from corerl_testing.tiny_model import reference, tiny_model
from corerl_testing.training_reference import (
    DEADLINE,
    FALLING,
    SQUARED_ERROR,
    batch,
    build,
    copied_weights,
    error,
    given_output,
    require_equal,
    step,
    tolerance,
    true_outputs,
)
from corerl_torch.supervised import SupervisedObjective

Factory = Selected[TrainingStrategyFactory]


def _train(strategy: TrainingStrategy, head: Literal["lm", "value"], seed: int) -> None:
    experience = batch(seed)
    experience.values = experience.returns = torch.ones(experience.response_mask.shape)
    strategy.update(experience, SupervisedObjective() if head == "lm" else SQUARED_ERROR)


def _save_and_load(selected: Factory) -> None:
    _goes_on(selected, "lm")


def _save_and_load_a_critic(selected: Factory) -> None:
    _goes_on(selected, "value")


def _goes_on(selected: Factory, head: Literal["lm", "value"]) -> None:
    straight = build(selected, optim=FALLING, head=head)
    resumed = build(selected, optim=FALLING, head=head, seed=5)
    for seed in (0, 1):
        _train(straight, head, seed)
    _train(resumed, head, seed=8)  # its own state is replaced
    with tempfile.TemporaryDirectory() as folder:
        write = straight.save(Path(folder))
        saved = copied_weights(straight)
        _train(straight, head, seed=2)  # the later write uses a copy
        if write is not None:
            within(DEADLINE, write, "what save() returned")
        resumed.load(Path(folder))
        read = selected.entry.load_fact("read_checkpoint") if head == "lm" else None
        if read is not None:
            model = ModelConfig(path=str(tiny_model()), dtype="fp32")
            require_equal(dict(read(Path(folder), model)), saved, "of read_checkpoint")
    require_equal(copied_weights(resumed), saved, "after load()")
    _train(resumed, head, seed=2)
    _train(straight, head, seed=3)
    _train(resumed, head, seed=3)
    require_equal(
        copied_weights(resumed), copied_weights(straight), "training on after load(), beside one that went on"
    )


def _export_after_load(selected: Factory) -> None:
    """The export holds the loaded model, not the model of construction."""
    trained, loaded = build(selected), build(selected)
    step(trained, batch())
    with tempfile.TemporaryDirectory() as saved, tempfile.TemporaryDirectory() as exported:
        write = trained.save(Path(saved))
        if write is not None:
            within(DEADLINE, write, "what save() returned")
        loaded.load(Path(saved))
        loaded.export(Path(exported))
        given = true_outputs(reference(Path(exported)), batch(), "log_probs", 1.0)
    expected = given_output(trained.forward(batch(), {"log_probs"}), "log_probs")
    off = max(error(expected[row, : len(each)], each) for row, each in enumerate(given))
    if not off <= tolerance(trained):
        raise CheckFailed(f"the model exported after load() has log-probs up to {off:.2g} off those of the saved one")


def _offload_and_onload(selected: Factory) -> None:
    moved, still = build(selected, optim=FALLING), build(selected, optim=FALLING)
    for number in range(3):
        step(moved, batch(number))
        step(still, batch(number))
        moved.offload()
        device = {weight.device.type for _, weight in moved.weights()}
        if device != {"cpu"}:
            raise CheckFailed(f"after offload() weights are on {', '.join(sorted(device))}: they must be on the CPU")
        moved.onload()
    require_equal(copied_weights(moved), copied_weights(still), "training between offload() and onload()")
    frozen = build(selected, frozen=True)
    before = given_output(frozen.forward(batch(), {"log_probs"}), "log_probs")
    frozen.offload()
    frozen.onload()
    if not torch.equal(given_output(frozen.forward(batch(), {"log_probs"}), "log_probs"), before):
        raise CheckFailed("offload() and onload() change the log-probs of a model with optim=None")


def _weight_names(selected: Factory) -> None:
    """The names and values of transformers' ``state_dict``; one name for tied weights."""
    for tied in (True, False):
        true = reference(tiny_model(tied=tied)).state_dict()
        strategy = build(selected, tied=tied)
        names = [name for name, _ in strategy.weights()]
        kind = "tied" if tied else "untied"
        for name, weight in copied_weights(strategy).items():
            if name not in true:
                raise CheckFailed(f"the weight '{name}' is unknown to transformers in the {kind} model")
            if weight.shape != true[name].shape or not torch.equal(weight.double(), true[name]):
                raise CheckFailed(f"the weight '{name}' is not the one that model.path holds under this name")
        given = [true[name].data_ptr() for name in names]
        if len(given) != len(set(given)):
            twice = next(name for name, place in zip(names, given, strict=True) if given.count(place) > 1)
            raise CheckFailed(f"the weight '{twice}' of the {kind} model comes twice, or under two names")
        missing = [name for name, tensor in true.items() if tensor.data_ptr() not in given]
        if missing:
            raise CheckFailed(f"the weight '{missing[0]}' of the {kind} model is missing in weights()")


def _weights_dtype(selected: Factory) -> None:
    """For strategies with and without an optimizer, rounded once from the model's own weights."""
    dtype = torch.bfloat16
    for optim in (FALLING, None):
        strategy = build(selected, optim=optim)
        given = {name: weight.to("cpu", copy=True) for name, weight in strategy.weights(dtype)}
        own = copied_weights(strategy)
        for name, weight in given.items():
            if weight.dtype != dtype:
                raise CheckFailed(f"weights({dtype}) gives '{name}' in {weight.dtype}")
        require_equal(
            given,
            {name: weight.to(dtype) for name, weight in own.items()},
            f"weights({dtype}) is not weights() rounded once",
        )


def _export(selected: Factory) -> None:
    """After an update, so that the export differs from the folder of ``model.path``."""
    experience = batch()
    for tied in (True, False):
        strategy = build(selected, tied=tied)
        step(strategy, experience)
        given = given_output(strategy.forward(experience, {"vocabulary_log_probs"}), "vocabulary_log_probs")
        with tempfile.TemporaryDirectory() as folder:
            strategy.export(Path(folder))
            true = true_outputs(reference(Path(folder)), experience, "vocabulary_log_probs", 1.0)
            prompt = _rendered(folder)
        off = max(error(given[row, : len(each)], each) for row, each in enumerate(true))
        if not off <= tolerance(strategy):
            raise CheckFailed(f"the exported model's log-probs are up to {off:.2g} off those of the trained one")
        if prompt != _rendered(str(tiny_model())):
            raise CheckFailed("the exported folder has another tokenizer or chat template than model.path")


def _rendered(folder: str) -> list[list[int]]:
    """A chat as token ids, by a folder's template and tokenizer."""
    tokenizer = load_tokenizer(ModelConfig(path=folder))
    chat = [{"role": "user", "content": "17 + 25?"}]
    return tokenizer.encode([tokenizer.render(chat, Location("a chat", 0), add_generation_prompt=True)])


def _shape(selected: Factory) -> None:
    given, model = build(selected).shape(), reference(tiny_model())
    true = ModelShape(
        model.num_parameters(),
        model.config.num_hidden_layers,
        model.config.hidden_size,
        given.device_name,
        model.config.vocab_size,
    )
    if given != true:
        raise CheckFailed(f"shape() is {given}, and the model's {true}")


def _one_rank(selected: Factory) -> None:
    strategy = build(selected)
    if (strategy.data_parallel_rank, strategy.data_parallel_size) != (0, 1):
        place = f"rank {strategy.data_parallel_rank} of {strategy.data_parallel_size}"
        raise CheckFailed(f"one process calls itself data-parallel {place}: it must be rank 0 of 1")


def _random_state() -> tuple[Any, ...]:
    name, keys, position, *_ = np.random.get_state()
    devices = [state.tolist() for state in torch.cuda.get_rng_state_all()] if torch.cuda.is_available() else []
    return torch.get_rng_state().tolist(), devices, random.getstate(), name, np.asarray(keys).tolist(), position


@contextmanager
def _untouched(what: str) -> Iterator[None]:
    """Each generator is advanced first, so that a generator seeded by ``what`` changes its state."""
    random.random()
    np.random.random()
    torch.rand(1)
    if torch.cuda.is_available():
        torch.rand(1, device="cuda")
    before = _random_state()
    yield
    if _random_state() != before:
        raise CheckFailed(f"{what} changed a global random state")


def _random_state_untouched(selected: Factory) -> None:
    heads: tuple[tuple[Literal["lm", "value"], Output], ...] = (("lm", "log_probs"), ("value", "values"))
    for head, output in heads:
        with _untouched(f"building with head={head}"):
            strategy = build(selected, head=head)
        with _untouched(f"forward() with head={head}"):
            strategy.forward(batch(), {output})
        with _untouched(f"update() with head={head}"):
            _train(strategy, head, seed=0)


def _random_weights_follow_the_seed(selected: Factory) -> None:
    model = ModelConfig(path=str(tiny_model()), dtype="fp32", load_format="dummy")
    built: list[dict[str, torch.Tensor]] = []
    with torch.random.fork_rng(devices=[]):
        for noise, seed in ((1, 4), (2, 4), (3, 5)):
            torch.manual_seed(noise)
            built.append(copied_weights(build(selected, model=model, seed=seed)))
    require_equal(built[0], built[1], "with load_format=dummy and the same seed")
    if all(torch.equal(built[0][name], built[2][name]) for name in built[0]):
        raise CheckFailed("with load_format=dummy another seed gave the same weights")


def _batch_unchanged(selected: Factory) -> None:
    """The tensors of a batch are unchanged for the next epoch."""
    experience = batch()
    strategy = build(selected)
    strategy.forward(experience, {"log_probs"})
    step(strategy, experience)
    for name, tensor in batch().tensors().items():
        if not torch.equal(tensor, experience.tensors()[name]):
            raise CheckFailed(f"forward() or update() changed the batch's {name}")


LIFECYCLE: dict[str, Callable[[Factory], None]] = {
    "save_and_load": _save_and_load,
    "save_and_load_a_critic": _save_and_load_a_critic,
    "export_after_load": _export_after_load,
    "offload_and_onload": _offload_and_onload,
    "weight_names": _weight_names,
    "weights_dtype": _weights_dtype,
    "export": _export,
    "shape": _shape,
    "one_rank": _one_rank,
    "random_state_untouched": _random_state_untouched,
    "random_weights_follow_the_seed": _random_weights_follow_the_seed,
    "batch_unchanged": _batch_unchanged,
}
