"""For ``corerl check``: whether a config's model packs under a strategy, and what no test proves of its family."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corerl.contracts.config import ModelConfig
from corerl.errors import ConfigError, ModelError
from corerl.models import overridden
from corerl_check import Finding, Machine, finding
from corerl_torch.families import vision
from corerl_torch.families.table import family_of, unproven
from corerl_torch.tries import KEY as PREFIXES
from corerl_torch.tries import sequential

PAGE = "docs/models.md"


def look(
    backend: str,
    key: str,
    model: ModelConfig,
    machine: Machine,
    *,
    packs: bool,
    share_prefixes: bool | None = None,
    ranks: int = 1,
    sharing: str = "",
) -> Iterator[Finding | ConfigError]:
    """One line about the packing of a small model of the config, and one about a family without proofs.

    Args:
        backend: a strategy of docs/models.md.
        key: of the config, that selects the strategy.
        packs: the strategy is to pack rows.
        ranks: that share the tokens of a row.
        sharing: the strategy's option by which they do.

    Yields:
        Nothing for a model whose config cannot be read, which is another finding.
    """
    config = config_of(model)
    if config is None:
        return
    from corerl_torch.families.modes import refusal
    from corerl_torch.families.packing import NOT_SLICED, verdict_on

    if refused := vision.reads_images(config) and _refusal(config):
        yield refused
        return
    kind = _text_kind(config)
    device = "cuda" if machine.gpus and not machine.planned else "cpu"
    verdict = verdict_on(config, device, trust_remote_code=model.trust_remote_code)
    if verdict.compared is not None and verdict.compared.rows:
        yield ConfigError("model.path", refusal(f"'{kind}'", verdict.compared))
        return
    yield from _compared(verdict, kind)
    if packs and model.attn_implementation != "eager":
        if ranks > 1 and not verdict.packed and (why := sequential(config, f"'{kind}'")):
            yield ConfigError(f"{key}.{sharing}", f"{NOT_SLICED} {why}")
        yield from _packing(key, verdict, kind, share_prefixes, f"{key}.{sharing}", ranks)
    if vision.reads_images(config):
        kind = config.model_type
        known, features = vision.vision_family_of(kind), vision.unproven(kind, backend)
    else:
        known, features = family_of(kind), unproven(kind, backend)
    if known is None:
        sentence = f"no test proves the family '{kind}' ({PAGE}); not proven under {backend}: {', '.join(features)}"
        yield Finding("note", "model.path", sentence)


def _text_kind(config: Any) -> str:
    try:
        return str(config.get_text_config().model_type)
    except Exception:  # a config of several texts
        return str(config.model_type)


def _compared(verdict: Any, kind: str) -> Iterator[Finding | ConfigError]:
    from corerl_torch.families import modes

    name, compared = f"'{kind}'", verdict.compared
    if compared is None:
        sentence = f"outputs of {name} are compared with its own forward at the start of a run, in the whole model"
        yield Finding("note", "model.path", sentence)
        return
    if compared.head:
        remedy = "Lower ppo_max_token_len_per_gpu if memory runs out."
        yield finding("warning", "model.path", modes.own_forward(name, compared), remedy)
    if compared.training:
        yield Finding("note", "model.path", modes.evaluation(name, compared))


def _refusal(config: Any) -> ConfigError | None:
    """Of a family whose images have a way of their own."""
    from transformers import AutoModel

    from corerl_torch.media import Ways

    auto: Any = AutoModel
    body = auto._model_mapping.get(type(config), None)
    if not isinstance(body, type) or not hasattr(body, "get_image_features"):
        return None
    try:
        Ways.of(body, config.model_type)
    except ModelError as error:
        return ConfigError("model.path", str(error).removeprefix("model.path: "))
    return None


def _packing(
    key: str, verdict: Any, kind: str, share_prefixes: bool | None, sharing: str, ranks: int
) -> Iterator[Finding | ConfigError]:
    if not verdict.packed:
        shared = "with and without shared prefixes" if not verdict.shared else "without shared prefixes"
        sentence = f"packed rows equal padded rows, {shared}, in two layers of '{kind}'"
        yield Finding("note", f"{key}.use_remove_padding", sentence)
        if verdict.shared and share_prefixes:
            yield ConfigError(PREFIXES, f"prefixes cannot be shared by '{kind}': {verdict.shared}")
        return
    if ranks > 1:
        yield ConfigError(
            sharing, f"{ranks} slices packed rows, and those of '{kind}' cannot be packed: {verdict.packed}"
        )
    elif share_prefixes:
        yield ConfigError(PREFIXES, f"prefixes cannot be shared by '{kind}', whose rows are padded: {verdict.packed}")
    yield finding(
        "warning",
        f"{key}.use_remove_padding",
        f"rows of '{kind}' are padded, although packing is asked for: {verdict.packed}",
        "Set use_remove_padding=false, which computes the same, or install what the sentence names.",
    )


def config_of(model: ModelConfig) -> Any:
    """The config by transformers; None if it cannot be read without the hub, which other checks ask."""
    from transformers import AutoConfig

    try:
        model = overridden(model)
        folder = Path(model.path).expanduser()
        path = str(folder) if folder.is_dir() else model.path
        return AutoConfig.from_pretrained(path, trust_remote_code=model.trust_remote_code, local_files_only=True)
    except Exception:  # architectures raise different errors for their configs
        return None
