"""Whether a model gives equal numbers for padded rows, for packed rows, and for rows that share prefixes.

A family of transformers may break rows that are laid end to end: a recurrent state or a convolution runs from one row
into the next, a position is counted in the batch instead of in the row, a mask is the only place of a window. No list
of names can know all of them. So a small model of the user's own config (:mod:`corerl_torch.families.cut`) is computed
in each layout, once in a process.
"""

import functools
import json
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.contracts.experience import Experience, collate
from corerl_torch import layout, packed_attention, tries
from corerl_torch.families.cut import VOCABULARY, cut
from corerl_torch.layout import Layout
from corerl_torch.loading import own_random_state, supported_attention
from corerl_torch.output_layer import body_of, logits_of

TOLERANCE = {"cpu": 3e-4, "cuda": 2e-2}
"""of log-probs, and of the gradient beside its norm; kernels on CUDA may round to TF32; a leak is above 0.1"""

LENGTHS = ((6, 9), (6, 13), (5, 7), (6, 9))
"""tokens of prompt and response of each row; rows 0, 1 and 3 have one prompt"""

FAILURES = (ArithmeticError, AttributeError, ImportError, LookupError, NotImplementedError, RuntimeError, TypeError)
"""of transformers' code for a layout or a config that it does not foresee, beside ValueError"""


class Verdict(NamedTuple):
    """Why a layout differs from padded rows; '' if it is equal.

    Attributes:
        packed: of rows end to end.
        shared: of rows that share their prefixes.
    """

    packed: str
    shared: str


def probe(config: Any, device: str, *, trust_remote_code: bool = False) -> Verdict:
    """Compare the layouts by log-probs and gradients of a small model, within a second.

    Args:
        config: of a transformers causal language model.
        device: ``cpu`` or ``cuda``: the same family may have other kernels there.
        trust_remote_code: the model's code may come from its folder.
    """
    text = config.get_text_config()
    kind: Any = type(text)
    return _probe(kind, json.dumps(text.to_dict(), sort_keys=True, default=str), device, trust_remote_code)


@functools.cache
def _probe(kind: Any, config: str, device: str, trust: bool) -> Verdict:
    try:
        model = _model(cut(kind.from_dict(json.loads(config))), device, trust)
        batch = _batch().to(device)
        true = _numbers(model, batch, layout.padded(batch))
    except (*FAILURES, ValueError) as error:
        why = f"no small model of the config can be computed: {_line(error)}"
        return Verdict(why, why)
    packed_attention.use(model, "sdpa")
    packed = _difference(model, batch, layout.packed(batch), true)
    return Verdict(packed, packed or _difference(model, batch, tries.shared_prefixes(batch), true))


def _difference(model: Any, batch: Experience, laid: Layout, true: tuple[Tensor, Tensor]) -> str:
    try:
        given = _numbers(model, batch, laid)
    except (*FAILURES, ValueError) as error:
        return _line(error)
    off = [float((given[0] - true[0]).abs().max()), float((given[1] - true[1]).norm() / true[1].norm())]
    if all(math.isfinite(each) and each <= TOLERANCE[given[0].device.type] for each in off):
        return ""
    return f"log-probs differ from those of padded rows by up to {off[0]:.1g}, the gradient by {off[1]:.1g}"


def _numbers(model: Any, batch: Experience, laid: Layout) -> tuple[Tensor, Tensor]:
    """(N,) log-probs of the response tokens, and the gradient of a weighted sum of them."""
    headless = model.get_output_embeddings() is None
    body = (model if headless else body_of(model))(**laid.inputs, use_cache=False)
    hidden = body.last_hidden_state.flatten(0, 1)[laid.positions]
    logits = hidden @ model.get_input_embeddings().weight.T if headless else logits_of(model, hidden, type(body))
    logits = logits.float()
    targets = layout.response_tokens(batch, laid.real.nonzero())
    log_probs = logits.log_softmax(dim=-1).gather(1, targets[:, None]).squeeze(1)
    weights = torch.linspace(-1, 1, len(log_probs), device=log_probs.device)
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad((log_probs * weights).sum(), trained, allow_unused=True)
    return log_probs.detach(), torch.cat([each.flatten() for each in gradients if each is not None])


def _model(config: Any, device: str, trust: bool) -> Any:
    """A model whose weights make every part count: transformers' own are so small that a leak would be too.

    The text part of a model of images has a body alone.
    """
    from transformers import AutoModel, AutoModelForCausalLM

    of_text: Any = AutoModelForCausalLM
    has_head = type(config) in of_text._model_mapping or "AutoModelForCausalLM" in (
        getattr(config, "auto_map", None) or {}
    )
    auto: Any = of_text if has_head else AutoModel
    for name in [name for name in vars(config) if name.endswith(("dropout", "pdrop")) and vars(config)[name]]:
        setattr(config, name, 0.0)
    attention = supported_attention(auto, config, "sdpa")
    with own_random_state(device, 0):
        options = {"attn_implementation": attention, "trust_remote_code": trust}
        model = auto.from_config(config, dtype=torch.float32, **options).to(device)
        randomize(model)
    return model


@torch.no_grad()
def randomize(model: Any) -> None:
    """Give all weights sizes as in a trained model: normal, by the number of inputs; norms and biases vary by a tenth.

    Uses torch's own random state.
    """
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.get_input_embeddings().weight.normal_()


def _batch() -> Experience:
    random = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(VOCABULARY, (count,), generator=random).tolist()
        return found

    common = tokens(6)
    prompts = [common if length == 6 else tokens(length) for length, _ in LENGTHS]
    responses = [tokens(length) for _, length in LENGTHS]
    responses[3][:4] = responses[0][:4]
    return collate(prompts, responses, [0, 0, 1, 0])


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
