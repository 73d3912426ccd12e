"""Loading a Hugging Face model."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError

from corerl.contracts.config import ModelConfig
from corerl.contracts.throughput import ModelShape
from corerl.errors import CoreRLError, ModelError
from corerl.files import read_text
from corerl.models import overridden
from corerl.registry.modules import uncollected
from corerl_torch.tokenizers import check_parts, why

Head = Literal["lm", "value", "score"]


def load_causal_lm(model: ModelConfig, *, device: str, dtype: torch.dtype, seed: int = 0) -> Any:
    """:func:`load_model` with the head of a language model."""
    return load_model(model, "lm", device=device, dtype=dtype, seed=seed)


def load_model(model: ModelConfig, head: Head, *, device: str, dtype: torch.dtype, seed: int = 0) -> Any:
    """A transformers model on ``device``.

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
    described = describe(model, head)
    with as_model_errors(model, meta=device == "meta"):
        # create tensors directly on the fastest device
        place = "meta" if device == "meta" else fastest_device(model)
        with own_random_state(place, seed), torch.device(place):
            if model.load_format == "dummy" or device == "meta":
                loaded = described.build()
                cast(loaded, dtype)
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
                without_bias(loaded, head)
                check_complete(model.path, info["missing_keys"], head)
                check_shapes(model.path, info["mismatched_keys"])
                tied = loaded.get_expanded_tied_weights_keys(all_submodels=True)
                check_tied(model.path, {name: tied[name] for name in tied.keys() - loaded.all_tied_weights_keys.keys()})
    return without_bias(loaded, head).to(device)


def fastest_device(model: ModelConfig) -> str:
    """The device on which weights are made."""
    return "cuda" if model.load_format == "dummy" and torch.cuda.is_available() else "cpu"


class Described(NamedTuple):
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


def describe(model: ModelConfig, head: Head) -> Described:
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
    model = overridden(model, weights=True)
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
        raise ModelError(f"model.path: {model.path} cannot be loaded: config.json: {why(error)}") from error
    auto: Any = AutoModelForCausalLM if head == "lm" else AutoModelForTokenClassification
    if _reads_images(config):
        if head == "value":
            raise ModelError(
                f"model.path: {model.path} reads images, and transformers has no value head for such models"
            )
        auto = AutoModelForImageTextToText
    if head != "lm":
        config.num_labels = 1
        config.classifier_dropout = 0.0  # the default of transformers is a tenth
    with as_model_errors(model, meta=True):
        attention = supported_attention(auto, config, model.attn_implementation)
    return Described(auto, config, path, attention, options)


@contextmanager
def as_model_errors(model: ModelConfig, *, meta: bool) -> Iterator[None]:
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
        unknown = (
            "config.json has an unknown value or a wrong number: "
            if isinstance(error, KeyError | ArithmeticError)
            else ""
        )
        raise ModelError(f"model.path: {model.path} cannot be loaded: {unknown}{why(error)}") from error
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if "PytorchStreamReader" in reason:
            raise ModelError(f"model.path: the weights in {model.path} are damaged: {reason}") from error
        if not meta and "negative dimension" not in reason:  # the machine may be the cause
            raise
        raise ModelError(f"model.path: {model.path} cannot be loaded: config.json: {reason}") from error
    except (CoreRLError, MemoryError):
        raise
    except Exception as error:  # the code of a family may raise anything for a config that it does not foresee
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(f"model.path: {model.path} cannot be loaded: its code fails: {reason}") from error


def cast(model: Any, dtype: torch.dtype) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def without_bias(model: Any, head: Head) -> Any:
    """The model, with a bias of its head unless that is ``score``.

    Raises:
        ModelError: the head of the family has another name than those of critics and reward models.
    """
    if head != "lm" and not hasattr(model, "score"):
        name = type(model).__name__
        raise ModelError(f"model.path: {name} has no head 'score', which a critic or a reward model needs")
    if head == "score":
        model.score.register_parameter("bias", None)
    return model


def supported_attention(auto: Any, config: Any, wanted: str) -> str:
    """``eager`` for a family without ``sdpa`` in transformers, such as gpt-oss, whose attention has sinks."""
    family = auto._model_mapping.get(type(config), None)
    return "eager" if wanted == "sdpa" and family is not None and not family._supports_sdpa else wanted


def image_text_config(model: ModelConfig) -> Any | None:
    """The config of a model that reads images, by transformers; None for other models, and for unreadable configs."""
    try:
        model = overridden(model)
        path = Path(model.path).expanduser()
        local = path.is_dir()
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
    """Suppress transformers' table of missing weights; :func:`check_complete` reports the relevant ones."""
    from transformers.utils import logging

    present = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(present)


def check_shapes(path: str, differing: Iterable[tuple[str, Sequence[int], Sequence[int]]]) -> None:
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


def check_tied(path: str, differing: Mapping[str, str]) -> None:
    """Raise ModelError if the files have two values for weights that the config ties: engines would read the other one.

    Args:
        differing: the names of two such weights.
    """
    for first, second in sorted(differing.items()):
        raise ModelError(
            f"model.path: the weights in {path} have different values for {first} and {second}, which its config.json "
            "ties: set model.override_config.tie_word_embeddings=false, or leave one of both out of the files"
        )


def check_complete(path: str, missing: Iterable[str], head: str) -> None:
    """Raise ModelError if weights are missing, except those of a new value head."""
    lacking = sorted(name for name in missing if head == "lm" or not name.startswith("score."))
    if lacking:
        raise ModelError(
            f"model.path: {path} lacks {len(lacking)} of the weights, such as '{lacking[0]}': they would be random"
        )
