"""Loading a Hugging Face model."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from corerl.contracts.config import ModelConfig
from corerl.contracts.throughput import ModelShape
from corerl.errors import ModelError
from corerl.files import read_text
from corerl.registry.modules import uncollected
from corerl_torch.hollow import Take, drawn, parameters_on_meta
from corerl_torch.model_files import Source, find_files, sources
from corerl_torch.tokenizers import check_parts

Head = Literal["lm", "value", "score"]


def load_causal_lm(model: ModelConfig, *, device: str, dtype: torch.dtype, seed: int = 0) -> Any:
    """:func:`load_model` with the head of a language model."""
    return load_model(model, "lm", device=device, dtype=dtype, seed=seed)


def load_model(model: ModelConfig, head: Head, *, device: str, dtype: torch.dtype, seed: int = 0) -> Any:
    """A transformers model on ``device``, without dropout.

    Args:
        device: ``meta``: only names and shapes; no weights are read, and the folder may have none.
        head: ``lm``: of a causal language model; ``value``: one number for each token (a token classification model
            with one label), random if the folder has no such head; ``score``: the same without a bias.
        dtype: of the weights.
        seed: of random weights (``load_format: dummy``, a new value head); the global random state is unchanged.

    Raises:
        ModelError: no such folder, missing or damaged weights, weights of other shapes, an architecture unknown to
            transformers, or an attention whose package is not installed.
    """
    described = _described(model, head)
    with _as_model_errors(model, meta=device == "meta"):
        # create tensors directly on the fastest device
        place = "meta" if device == "meta" else fastest_device(model)
        with own_random_state(place, seed), torch.device(place):
            if model.load_format == "dummy" or device == "meta":
                loaded = described.build()
                _cast(loaded, dtype)
            else:
                with _no_report():
                    loaded, info = described.auto.from_pretrained(
                        described.path,
                        config=described.config,
                        dtype=dtype,
                        attn_implementation=described.attention,
                        output_loading_info=True,
                        ignore_mismatched_sizes=True,  # reported below
                        **described.options,
                    )
                _check_complete(model.path, info["missing_keys"], head)
                _check_shapes(model.path, info["mismatched_keys"])
    return _without_bias(loaded, head).to(device)


def load_hollow(model: ModelConfig, head: Head, dtype: torch.dtype) -> tuple[Any, list[nn.Parameter]]:
    """The model of :func:`load_model` with its parameters on ``meta``; buffers that no file has are real, on the CPU.

    Returns:
        The model, and its parameters in the order in which they were made.

    Raises:
        ModelError: as there.
    """
    from transformers.initialization import no_init_weights

    described, created = _described(model, head), []  # type: tuple[_Described, list[nn.Parameter]]
    with _as_model_errors(model, meta=True), torch.device("cpu"), no_init_weights(), parameters_on_meta(created):
        loaded = described.build()
        loaded.tie_weights()
    _cast(loaded, dtype)
    return _without_bias(loaded, head), created


def draw(model: ModelConfig, head: Head, seed: int, take: Take, give: Callable[[int], Tensor | None]) -> Any:
    """Draw the random weights of ``load_format: dummy`` one tensor at a time, with the numbers of :func:`load_model`.

    Args:
        take: called with each parameter's number, in the order in which they were made, and its values, float32; again
            if the values change later.
        give: returns the values that were taken.

    Returns:
        The model, with buffers alone.
    """
    described, created, place = _described(model, head), [], fastest_device(model)  # type: ignore[var-annotated]
    with _as_model_errors(model, meta=False), own_random_state(place, seed), torch.device(place):
        with drawn(take, give, created, place):
            return described.build()


def draw_missing(model: Any, missing: Collection[str], seed: int) -> dict[str, Tensor]:
    """Random values of weights that the files of a hollow model lack, such as a new value head."""
    values: dict[str, Tensor] = {}
    named = dict(model.named_parameters())
    if not any(name in missing for name in named):
        return values
    names = [name for name in named if name in missing]
    for name, parameter in named.items():
        parameter._is_hf_initialized = name not in missing
    with own_random_state("cpu", seed):
        with drawn(
            lambda number, value: values.update({names[number]: value}),
            lambda number: None,
            [named[name] for name in names],
            "cpu",
        ):
            model.initialize_weights()
    return values


def read_sources(model: Any, config: ModelConfig, head: Head) -> tuple[dict[str, Source], set[str]] | None:
    """Each stored tensor of a hollow model, by name, and the names of those that its files lack.

    Returns:
        None if transformers itself has to read the files: they are no safetensors, or quantised, or the model has code
        of its own.

    Raises:
        ModelError: as from :func:`load_model`.
    """
    described = _described(config, head)
    if config.trust_remote_code or getattr(described.config, "quantization_config", None) is not None:
        return None
    with _as_model_errors(config, meta=False):
        files = find_files(described.path, local=bool(described.options["local_files_only"]))
        if not files:
            return None
        found = sources(model, files)
        if head == "lm":
            _read_generation_config(model, described)
    state = model.state_dict()
    ties: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        ties.setdefault(id(parameter), []).append(name)
    for names in ties.values():  # files may have a tied tensor under either name
        present = [name for name in names if name in found]
        found |= {name: found[present[0]] for name in names if present and name not in found}
    ignored = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_missing or ()]
    missing = {name for name in state if name not in found}
    _check_complete(config.path, (name for name in missing if not any(each.search(name) for each in ignored)), head)
    _check_shapes(
        config.path,
        (
            (name, each.shape, state[name].shape)
            for name, each in found.items()
            if each.shape != tuple(state[name].shape)
        ),
    )
    return found, missing


def fastest_device(model: ModelConfig) -> str:
    """The device on which weights are made."""
    return "cuda" if model.load_format == "dummy" and torch.cuda.is_available() else "cpu"


class _Described(NamedTuple):
    """A model's class and config, before its weights."""

    auto: Any
    config: Any
    path: str
    attention: str
    options: dict[str, bool]

    def build(self) -> Any:
        """The model with random weights, float32: the same random numbers for every dtype."""
        return self.auto.from_config(
            self.config,
            dtype=torch.float32,
            attn_implementation=self.attention,
            trust_remote_code=self.options["trust_remote_code"],
        )


def _described(model: ModelConfig, head: Head) -> _Described:
    with uncollected():
        from transformers import (
            AutoConfig,
            AutoModelForCausalLM,
            AutoModelForImageTextToText,
            AutoModelForTokenClassification,
        )
        from transformers.utils.logging import disable_progress_bar

    if not sys.stderr.isatty():
        disable_progress_bar()  # type: ignore[no-untyped-call]
    local = Path(model.path).expanduser().is_dir()
    path = str(Path(model.path).expanduser()) if local else model.path
    options = {"trust_remote_code": model.trust_remote_code, "local_files_only": local}
    if local:
        check_parts(Path(path))
    try:
        config = AutoConfig.from_pretrained(path, **options)
    except ImportError:
        raise
    except Exception as error:  # architectures raise different errors for their configs
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"model.path: {model.path} cannot be loaded: config.json: {reason}") from error
    auto: Any = AutoModelForCausalLM if head == "lm" else AutoModelForTokenClassification
    if _reads_images(config):
        if head == "value":
            raise ModelError(
                f"model.path: {model.path} reads images, and transformers has no value head for such models"
            )
        auto = AutoModelForImageTextToText
    for name in [name for name in vars(config) if name.endswith(("dropout", "pdrop")) and vars(config)[name]]:
        setattr(config, name, 0.0)
    if head != "lm":
        config.num_labels = 1
        config.classifier_dropout = 0.0  # the default of transformers is a tenth
    with _as_model_errors(model, meta=True):
        attention = supported_attention(auto, config, model.attn_implementation)
    return _Described(auto, config, path, attention, options)


@contextmanager
def _as_model_errors(model: ModelConfig, *, meta: bool) -> Iterator[None]:
    """Raise ModelError instead of the errors of transformers and of files.

    Args:
        meta: no tensor has storage, so that a RuntimeError is one of the config.
    """
    try:
        yield
    except (SafetensorError, UnpicklingError, EOFError) as error:
        reason = (str(error) or "it is cut off").splitlines()[0]
        raise ModelError(f"model.path: the weights in {model.path} are damaged: {reason}") from error
    except (OSError, ValueError, KeyError, ImportError, ArithmeticError) as error:
        raise ModelError(f"model.path: {model.path} cannot be loaded: {str(error).splitlines()[0]}") from error
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if "PytorchStreamReader" in reason:
            raise ModelError(f"model.path: the weights in {model.path} are damaged: {reason}") from error
        if not meta:  # the machine may be the cause
            raise
        raise ModelError(f"model.path: {model.path} cannot be loaded: config.json: {reason}") from error


def _cast(model: Any, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def _without_bias(model: Any, head: Head) -> Any:
    if head == "score":
        model.score.register_parameter("bias", None)
    return model


def _read_generation_config(model: Any, described: _Described) -> None:
    from transformers import GenerationConfig

    local = described.options["local_files_only"]
    if model.can_generate() and (not local or (Path(described.path) / "generation_config.json").is_file()):
        with contextlib.suppress(OSError):  # there is none on the hub
            model.generation_config = GenerationConfig.from_pretrained(described.path, local_files_only=local)


def supported_attention(auto: Any, config: Any, wanted: str) -> str:
    """``eager`` for a family without ``sdpa`` in transformers, such as gpt-oss, whose attention has sinks."""
    family = auto._model_mapping.get(type(config), None)
    return "eager" if wanted == "sdpa" and family is not None and not family._supports_sdpa else wanted


def image_text_config(model: ModelConfig) -> Any | None:
    """The config of a model that reads images, by transformers; None for other models, and for unreadable configs."""
    path = Path(model.path).expanduser()
    local = path.is_dir()
    try:
        if local and "vision_config" not in json.loads(read_text(path / "config.json")):
            return None
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(
            str(path) if local else model.path, trust_remote_code=model.trust_remote_code, local_files_only=local
        )
    except Exception:  # whoever loads the model reports it
        return None
    return config if _reads_images(config) else None


def _reads_images(config: Any) -> bool:
    """Whether transformers has a model of images and text for this config."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    return hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def model_shape(model: Any, device: str) -> ModelShape:
    """The numbers of a transformers model, possibly without storage, for throughput figures.

    In a mixture of experts, only the parameters used for one token count.
    """
    config = model.config.get_text_config()
    parameters: int = model.num_parameters()
    routed: int = getattr(config, "num_experts_per_tok", None) or 0
    experts = sum(each.numel() for name, each in model.named_parameters() if ".mlp.experts." in name) if routed else 0
    if experts:
        counts = (getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
        parameters -= experts - experts * routed // next(count for count in counts if count)
    name = torch.cuda.get_device_name() if device == "cuda" else ""
    return ModelShape(parameters, config.num_hidden_layers, config.hidden_size, name, config.vocab_size)


@contextmanager
def own_random_state(device: str, seed: int) -> Iterator[None]:
    """Seed torch's random numbers on the CPU and on ``device``; afterwards restore their state.

    ``torch.manual_seed`` does not suffice: it seeds the generators of all CUDA devices, and in a process that has not
    used CUDA yet, it does so at the first use.
    """
    used = [torch.cuda.current_device()] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(used):
        torch.default_generator.manual_seed(seed)
        if used:
            torch.cuda.manual_seed(seed)  # the present device only
        yield


@contextmanager
def _no_report() -> Iterator[None]:
    """Suppress transformers' table of missing weights; :func:`_check_complete` reports the relevant ones."""
    from transformers.utils import logging

    present = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(present)


def _check_shapes(path: str, differing: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
    """Raise ModelError if weights have other shapes than the config asks for.

    Args:
        differing: (name, shape in the file, shape of the model).
    """
    found = sorted((name, tuple(file), tuple(own)) for name, file, own in differing)
    if found:
        name, file, own = found[0]
        more = f", and {len(found) - 1} more" if len(found) > 1 else ""
        raise ModelError(
            f"model.path: the weights in {path} do not fit its config.json: {name} has the shape {file}, and the "
            f"config asks for {own}{more}"
        )


def _check_complete(path: str, missing: Iterable[str], head: str) -> None:
    """Raise ModelError if weights are missing, except those of a new value head."""
    lacking = sorted(name for name in missing if head == "lm" or not name.startswith("score."))
    if lacking:
        raise ModelError(
            f"model.path: {path} lacks {len(lacking)} of the weights, such as '{lacking[0]}': they would be random"
        )
