"""Whether a model gives equal numbers for padded rows, for packed rows, and for rows that share prefixes.

A family of transformers may break rows that are laid end to end: a recurrent state or a convolution runs from one row
into the next, a position is counted in the batch instead of in the row, a mask is the only place of a window. No list
of names can know all of them. So a small model of the user's own config (:mod:`corerl_torch.families.cut`) is computed
in each layout, once in a process, and compared with its own forward (:mod:`corerl_torch.families.comparison`).
"""

import functools
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl_torch import layout, packed_attention, tries
from corerl_torch.families.comparison import Compared, compare, line, rows, special_tokens
from corerl_torch.families.cut import VOCABULARY, cuts
from corerl_torch.layout import Layout
from corerl_torch.loading import Head, own_random_state, supported_attention
from corerl_torch.output_layer import body_of, logits_of

TOLERANCE = {"cpu": 3e-4, "cuda": 2e-2}
"""of log-probs, and of the gradient beside its norm; kernels on CUDA may round to TF32; a leak is above 0.1"""

ALIKE = 2e-2
"""largest difference of outputs from those of the own forward of each row; other families are off by over 0.1"""

LARGEST = 5 * 10**7
"""parameters of a model that is computed"""


class Verdict(NamedTuple):
    """Why a layout differs from padded rows; '' if it is equal.

    Attributes:
        packed: of rows end to end.
        shared: of rows that share their prefixes.
        compared: with the model's own forward; None if there is no small model with a head.
    """

    packed: str
    shared: str
    compared: Compared | None = Compared()


def probe(config: Any, device: str, head: Head = "lm", *, trust_remote_code: bool = False) -> Verdict:
    """Compare layouts, output layer and modes by log-probs and gradients of a small model, within a second.

    Args:
        config: of a transformers causal language model.
        device: ``cpu`` or ``cuda``: the same family may have other kernels there.
        head: of the model.
        trust_remote_code: the model's code may come from its folder.
    """
    try:
        text = config.get_text_config()
        kind: Any = type(text)
        values = json.dumps(text.to_dict(), sort_keys=True, default=str)
        verdict = _probe(kind, values, config.name_or_path, device, head, trust_remote_code)
    except Exception as error:  # the code of a family may raise anything for a config that it does not foresee
        return _unknown(error)
    return verdict if text is config else verdict._replace(compared=None)


def _unknown(error: Exception) -> Verdict:
    why = f"no small model of the config can be computed: {line(error)}"
    return Verdict(why, why, None)


@functools.cache
def _probe(kind: Any, values: str, path: str, device: str, head: Head, trust: bool) -> Verdict:
    first: Exception | None = None
    for make in cuts(kind.from_dict(json.loads(values))):
        try:
            return _verdict(_Small.of(make(), path, device, head, trust))
        except Exception as error:
            first = first or error
    raise first or ValueError("no config")


class _Small(NamedTuple):
    """A model that every layout and mode can compute within milliseconds, and its rows."""

    model: Any
    head: Head
    batch: Experience
    device: str

    @classmethod
    def of(cls, config: Any, path: str, device: str, head: Head, trust: bool) -> "_Small":
        model = _model(config, path, device, head, trust)
        made = cls(model, head, rows(VOCABULARY, special_tokens(config)), device)
        with torch.no_grad():
            made.outputs(layout.padded(made.batch), made.batch, own=made.has_head)
        return made

    @property
    def has_head(self) -> bool:
        """Not of the text part of a model of images, which has a body alone."""
        return self.head != "lm" or self.model.get_output_embeddings() is not None

    def outputs(self, laid: Layout, batch: Experience, *, own: bool) -> Tensor:
        """(N,) log-probs of the response tokens, or values."""
        inputs = {
            name: each.to(self.device) if isinstance(each, Tensor) else each for name, each in laid.inputs.items()
        }
        positions = laid.positions.to(self.device)
        if own:
            logits = self.model(**inputs, use_cache=False).logits.flatten(0, 1)[positions]
        else:
            body = (body_of(self.model) if self.has_head else self.model)(**inputs, use_cache=False)
            hidden = body.last_hidden_state.flatten(0, 1)[positions]
            embedding = self.model.get_input_embeddings().weight
            logits = logits_of(self.model, hidden, type(body)) if self.has_head else hidden @ embedding.T
        if self.head != "lm":
            values: Tensor = logits.float().squeeze(-1)
            return values
        targets = layout.response_tokens(batch, laid.real.nonzero()).to(self.device)
        log_probs: Tensor = logits.float().log_softmax(dim=-1).gather(1, targets[:, None]).squeeze(1)
        return log_probs

    def numbers(self, laid: Layout, *, own: bool) -> tuple[Tensor, Tensor]:
        """(N,) outputs, and the gradient of a weighted sum of them."""
        outputs = self.outputs(laid, self.batch, own=own)
        weights = torch.linspace(-1, 1, len(outputs), device=outputs.device)
        trained = [each for each in self.model.parameters() if each.requires_grad]
        gradients = torch.autograd.grad((outputs * weights).sum(), trained, allow_unused=True, materialize_grads=True)
        return outputs.detach(), torch.cat([each.flatten() for each in gradients])


def _verdict(small: _Small) -> Verdict:
    compared = _compared(small) if small.has_head else Compared()
    if compared.rows:
        return Verdict(compared.rows, compared.rows, compared)
    small.model.train(not compared.training)
    own = bool(compared.head)
    true = small.numbers(layout.padded(small.batch), own=own)
    packed_attention.use(small.model, "sdpa")
    packed, shared = (_difference(small, lay, true, own=own) for lay in (layout.packed, tries.shared_prefixes))
    return Verdict(packed, packed or shared, compared if small.has_head else None)


@torch.no_grad()
def _compared(small: _Small) -> Compared:
    def off(given: Tensor, true: Tensor) -> str:
        by = float((given - true).abs().max())
        return "" if by <= ALIKE else f"off by up to {by:.1g}"

    def outputs(rows: Experience, *, own: bool) -> Tensor:
        return small.outputs(layout.padded(rows), rows, own=own)

    return compare(outputs, small.model.train, off, small.batch, small.device)


def _difference(small: _Small, lay: Callable[[Experience], Layout], true: tuple[Tensor, Tensor], *, own: bool) -> str:
    try:
        given = small.numbers(lay(small.batch), own=own)
    except Exception as error:
        return f"its code fails for them: {line(error)}"
    off = [float((given[0] - true[0]).abs().max()), float((given[1] - true[1]).norm() / true[1].norm())]
    if all(math.isfinite(each) and each <= TOLERANCE[torch.device(small.device).type] for each in off):
        return ""
    return f"log-probs differ from those of padded rows by up to {off[0]:.1g}, the gradient by {off[1]:.1g}"


def _model(config: Any, path: str, device: str, head: Head, trust: bool) -> Any:
    """A model whose weights make every part count: transformers' own are so small that a leak would be too.

    The text part of a model of images has a body alone.

    Raises:
        ValueError: the model is not small.
    """
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification

    of_text: Any = AutoModelForCausalLM if head == "lm" else AutoModelForTokenClassification
    own_code = of_text.__name__ in (getattr(config, "auto_map", None) or {})
    auto: Any = of_text if own_code or type(config) in of_text._model_mapping else AutoModel
    config.name_or_path = path
    if head != "lm":
        config.num_labels, config.classifier_dropout = 1, 0.0
    options = {"attn_implementation": supported_attention(auto, config, "sdpa"), "trust_remote_code": trust}
    with torch.device("meta"):
        size = sum(each.numel() for each in auto.from_config(config, **options).parameters())
    if size > LARGEST:
        raise ValueError(f"the smallest one has {size:,} parameters")
    with own_random_state(device, 0):
        model = auto.from_config(config, dtype=torch.float32, **options).to(device)
        randomize(model)
    return model.eval()


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
