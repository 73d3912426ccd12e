"""Routers of a transformers mixture of experts: their choices are recorded, and replayed (R3).

A router chooses the top experts of each token and weighs them. A replay replaces the choice alone: the weights come
from the router's own scores at the replayed experts, by the router's own code, and gradients flow through them (Ma et
al. 2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers", arXiv 2510.11370).

One way serves all families: transformers names the class of a model's routers as the recorder of ``router_logits``, and
their code calls ``topk`` on (tokens, experts) scores. This call is intercepted while a router runs.
"""

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.training_strategies import StrategySpec
from corerl.errors import ModelError, RunError

COLUMN = "experts"
"""name of the column: (N, layers with experts, top_k) uint8 or int16, one value of each token that was read"""

RECORDED = "router_logits"

SMALL = 256
"""largest number of experts whose ids are bytes"""

SIGMOIDS = (torch.sigmoid, Tensor.sigmoid, torch.nn.functional.sigmoid)

Watch = Callable[[int, Tensor, Tensor], None]
"""of a router: its number, logits (tokens, experts), chosen experts (tokens, top_k)"""


class Choices(NamedTuple):
    """Experts of the input tokens of a model.

    Attributes:
        experts: (tokens, layers with experts, top_k), of any integer type.
        known: (tokens,) bool; the routers choose for the other tokens.
    """

    experts: Tensor
    known: Tensor

    @classmethod
    def of(cls, column: TokenColumn, tokens: Tensor, width: int) -> "Choices":
        """
        Args:
            tokens: (n,) int64, each input token's index among the (rows, ``width``) token ids; -1: a filler token.
        """
        counts = torch.nn.functional.pad(column.counts, (0, width - column.counts.shape[1])).flatten()
        starts = counts.cumsum(0) - counts
        known = (counts[tokens] > 0) & (tokens >= 0)
        return cls(column.values[torch.where(known, starts[tokens], 0)], known)


def check_choices(choices: Choices, layers: int, top_k: int, experts: int) -> None:
    """
    Raises:
        RunError: these are no choices of a model with such routers.
    """
    shape = tuple(choices.experts.shape[1:])
    if shape != (layers, top_k):
        raise RunError(
            f"column '{COLUMN}' has {' × '.join(map(str, shape))} experts of each token, and the trained model has "
            f"{layers} layers with experts × {top_k}: another model recorded it"
        )
    smallest, largest = (int(each) for each in choices.experts.aminmax()) if choices.experts.numel() else (0, 0)
    if not 0 <= smallest <= largest < experts:
        raise RunError(
            f"column '{COLUMN}' names expert {smallest if smallest < 0 else largest}, and a layer of the trained model "
            f"has {experts}: another model recorded it"
        )


class Routers:
    """All routers of a model, in the order of its layers.

    Attributes:
        layers: number of the decoder layer of each router.
        experts: number of experts of a layer.
        top_k: number of chosen experts of a token.
        modules: the routers.
        sigmoid: the scores of the experts are sigmoids of the logits, not a softmax.
        watch: sees the logits and the choice of each router, if :meth:`install` was called; None: nothing does.

    Raises:
        ModelError: the model has no experts, or its routers cannot be intercepted.
    """

    def __init__(self, model: Any) -> None:
        config = model.config.get_text_config()
        kind = config.model_type
        modules = routers_of(model)
        sizes = (getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
        self.experts: int = next((size for size in sizes if size), 0)
        self.top_k: int = getattr(config, "num_experts_per_tok", None) or 0
        if not (modules or self.experts):
            raise ModelError(f"model.path: {kind} has no experts, so no choice of them can be recorded or replayed")
        numbers = [re.search(r"\.layers\.(\d+)\.", f".{name}") for name in modules]
        trials = [_trial(each, config.hidden_size, self.experts, self.top_k) for each in modules.values()]
        if not (modules and all(numbers) and all(trials)):
            raise ModelError(
                f"model.path: the routers of {kind} do not choose their experts by one top-k, so the choice can be "
                f"neither recorded nor replayed: remove '{COLUMN}' from rollout.record"
            )
        self.layers = tuple(int(number[1]) for number in numbers if number)
        self.modules = list(modules.values())
        self.sigmoid = any(each.sigmoid for each in trials if each)
        self._replayed: Choices | None = None
        self._recorded: list[Tensor] | None = None
        self._installed = False
        self.watch: Watch | None = None

    @property
    def bytes(self) -> int:
        """Of the choices of one token."""
        return len(self.layers) * self.top_k * self._dtype.itemsize

    @property
    def _dtype(self) -> torch.dtype:
        return torch.uint8 if self.experts <= SMALL else torch.int16

    def record(self) -> None:
        """From now on :meth:`taken` has the choices."""
        self.install()
        self._recorded = []

    def taken(self) -> Tensor:
        """(tokens, layers, top_k) uint8 or int16, the choices of the last forward pass, which are forgotten here."""
        assert self._recorded is not None
        taken, self._recorded = self._recorded[-len(self.layers) :], []  # a pass before may have failed
        return torch.stack(taken, dim=1).to(self._dtype)

    def replay(self, choices: Choices | None) -> None:
        """The choices of the next forward pass, and of its repetition in the backward pass; None: the routers choose.

        Raises:
            RunError: these are no choices of such a model.
        """
        if choices is not None:
            check_choices(choices, len(self.layers), self.top_k, self.experts)
            self.install()
        self._replayed = choices

    def install(self) -> None:
        """Intercept the routers from now on."""
        if self._installed:
            return
        self._installed = True
        for number, module in enumerate(self.modules):
            module.forward = torch.compiler.disable(_Intercepted(self, number, module.forward))  # type: ignore[no-untyped-call]

    def choose(self, number: int, scores: Tensor, top: Any) -> Any:
        """The result of ``topk`` in the router ``number``: ``top``, or the scores at the replayed experts."""
        if self._recorded is not None:
            self._recorded.append(top.indices)
        if self._replayed is None:
            return top
        experts, known = self._replayed
        if len(experts) != len(scores):
            raise RunError(f"column '{COLUMN}' has experts of {len(experts)} tokens, and a router has {len(scores)}")
        indices = torch.where(known[:, None], experts[:, number].long(), top.indices)
        return torch.return_types.topk((scores.gather(1, indices), indices))


class Replay:
    """The replay of a column of a batch in a policy's model; a model without routers is an error if there is a column.

    Args:
        model: of transformers, not sharded yet.

    Attributes:
        error: why the model cannot replay; None if it can, and then it has ``routers``.
    """

    def __init__(self, model: Any) -> None:
        self.error: ModelError | None = None
        try:
            self.routers = Routers(model)
        except ModelError as error:
            self.error = error

    @classmethod
    def of(cls, model: Any, spec: StrategySpec) -> "Replay | None":
        """None for a critic or a reference: the policy alone replays."""
        return cls(model) if spec.optim is not None and spec.head == "lm" else None

    def begin(self, columns: Mapping[str, TokenColumn], tokens: Tensor, width: int) -> None:
        """Replay the column in the next forward pass, if there is one.

        Args:
            tokens, width: as for :meth:`Choices.of`.

        Raises:
            ModelError: the model has no experts, or its routers cannot be intercepted.
            RunError: another model recorded the column.
        """
        column = columns.get(COLUMN)
        if column is None or not len(column.values):
            if self.error is None:
                self.routers.replay(None)
            return
        if self.error is not None:
            raise self.error
        self.routers.replay(Choices.of(column, tokens, width))


def compute_in_float32(model: Any) -> None:
    """Let the routers of a model compute in float32, with the weights that engines have, rounded to the compute dtype.

    Their weights of the experts are float32 too. Routers that cannot be intercepted stay as they are. To be called
    before the routers are intercepted.
    """
    try:
        modules = Routers(model).modules
    except ModelError:
        return
    for module in modules:
        module.forward = _InFloat32(module.forward)


class _InFloat32:
    def __init__(self, forward: Any) -> None:
        self.forward = forward

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        device = arguments[0].device.type
        rounded = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False), _ExactLinear(rounded):
            return self.forward(*arguments, **named)


class _ExactLinear(TorchFunctionMode):
    """Linear layers in float32.

    Args:
        rounded: dtype that states, weights and biases are rounded to before; None: that they have.
    """

    def __init__(self, rounded: torch.dtype | None) -> None:
        super().__init__()
        self.rounded = rounded

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            args = [self._exact(each) for each in args]
            kwargs = {name: self._exact(each) for name, each in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))

    def _exact(self, value: Any) -> Any:
        return value.to(self.rounded or value.dtype).float() if isinstance(value, Tensor) else value


class _Intercepted:
    """A router's forward, with :meth:`Routers.choose` in place of its ``topk``."""

    def __init__(self, routers: Routers, number: int, forward: Any) -> None:
        self.routers, self.number, self.forward = routers, number, forward

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        seen: list[Tensor] = []

        def choose(scores: Tensor, top: Any) -> Any:
            top = self.routers.choose(self.number, scores, top)
            seen.append(top.indices)
            return top

        with _TopK(self.routers.experts, self.routers.top_k, choose):
            outputs = self.forward(*arguments, **named)
        if self.routers.watch is not None:
            shape = (len(seen[0]), self.routers.experts)
            logits = next(each for each in outputs if each.is_floating_point() and each.shape == shape)
            self.routers.watch(self.number, logits, seen[0])
        return outputs


class _TopK(TorchFunctionMode):
    """Replaces results of ``topk`` that choose experts; those within or among groups of experts have other shapes.

    Attributes:
        sigmoid: a sigmoid was computed.
    """

    def __init__(self, experts: int, top_k: int, choose: Any) -> None:
        super().__init__()
        self.experts, self.top_k, self.choose, self.sigmoid = experts, top_k, choose, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in (torch.topk, Tensor.topk):
            self.sigmoid |= func in SIGMOIDS
            return result
        number = args[1] if len(args) > 1 else kwargs["k"]
        scores = args[0] if args else kwargs["input"]
        if scores.dim() != 2 or (scores.shape[1], number) != (self.experts, self.top_k):
            return result
        return self.choose(scores, result)


def routers_of(model: Any) -> dict[str, Any]:
    """Name -> module of the class that transformers names as the recorder of the routers' logits."""
    classes = set()
    for module in model.modules():
        of_routers = (getattr(module, "_can_record_outputs", None) or {}).get(RECORDED, ())
        for each in of_routers if isinstance(of_routers, list | tuple) else (of_routers,):
            classes.add(getattr(each, "target_class", each))
    return {name: module for name, module in model.named_modules() if type(module) in classes}


@torch.no_grad()
def _trial(router: Any, hidden: int, experts: int, top_k: int) -> _TopK | None:
    """A pass of a router without storage; None unless it returns the indices of exactly one ``topk`` of (tokens,
    experts).
    """
    seen: list[Any] = []

    def choose(scores: Tensor, top: Any) -> Any:
        seen.append(top.indices)
        return top

    trial = copy.deepcopy(router).to("meta")
    trial.__dict__.pop("forward", None)  # :class:`_InFloat32`
    states = torch.empty(2, hidden, device="meta", dtype=next(trial.parameters()).dtype)
    parameters = list(inspect.signature(trial.forward).parameters.values())[1:]
    biases = [torch.empty(experts, device="meta") for each in parameters if each.default is each.empty]
    try:
        with _TopK(experts, top_k, choose) as mode:
            outputs = trial(states, *biases)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):
        return None
    chosen = len(seen) == 1 and any(each is seen[0] for each in outputs if isinstance(outputs, tuple))
    return mode if chosen else None
