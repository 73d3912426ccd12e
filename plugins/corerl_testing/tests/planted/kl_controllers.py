"""Wrong KL controllers."""

from dataclasses import dataclass

from corerl import option
from planted.fault import Fault


def adaptive(coef: float, kl: float, responses: int) -> float:
    """Towards a divergence of 0.1, and never below 0."""
    return max(0.0, coef * (1 + min(max(kl / 0.1 - 1, -0.2), 0.2) * responses / 10_000))


def becomes_negative(coef: float, kl: float, responses: int) -> float:
    """Without the bound."""
    return coef * (1 + min(max(kl / 0.1 - 1, -0.2), 0.2) * responses / 10_000)


def overflows(coef: float, kl: float, responses: int) -> float:
    """A product without a bound."""
    return coef * (1e300 * max(kl, 1.0)) * 1e300


def returns_nothing(coef: float, kl: float, responses: int) -> None:
    """No return."""


class CountsSteps:
    """Its count is in no checkpoint."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, coef: float, kl: float, responses: int) -> float:
        self.steps += 1
        return coef / self.steps


counts_steps = CountsSteps()


def wrong_sign(coef: float, kl: float, responses: int) -> float:
    """Less divergence than the target raises the coefficient."""
    return max(0.0, coef * (1 - min(max(kl / 0.1 - 1, -0.2), 0.2) * responses / 10_000))


_LARGEST: list[int] = []


def of_the_first_batch(coef: float, kl: float, responses: int) -> float:
    """Relative to the batch of the first call in this process."""
    if not _LARGEST:
        _LARGEST.append(responses)
    return max(0.0, coef * (1 + min(max(kl / 0.1 - 1, -0.2), 0.2) * min(1.0, responses / _LARGEST[0])))


def of_three(coef: float, kl: float, divergence: float) -> float:
    """Named otherwise, which is no fault: it is called by position."""
    return coef


def of_two(coef: float, kl: float) -> float:
    """Without the number of responses."""
    return coef


@dataclass
class Options:
    """Right options."""

    target: float = option(0.1, "the divergence to keep", gt=0)


@dataclass
class OutOfRange:
    """The default is not among the values that it allows."""

    target: float = option(0.0, "the divergence to keep", gt=0)


@dataclass
class NoHelp:
    """A field that was not declared by option()."""

    target: float = 0.1


def with_options(coef: float, kl: float, responses: int, *, options: Options) -> float:
    """A target of its own."""
    return max(0.0, coef * (1 + min(max(kl / options.target - 1, -0.2), 0.2) * responses / 10_000))


def _fault(
    name: str, flaw: str, wrong: object, check: str, reason: str, right: object = adaptive, **more: object
) -> Fault:
    return Fault("kl_controllers", name, flaw, wrong, right, check, reason, **more)  # type: ignore[arg-type]


FAULTS = [
    _fault(
        "becomes_negative",
        "the coefficient has no lower bound",
        becomes_negative,
        "finite_and_not_negative",
        "with coef 0.001, kl -1000 and 1000000 responses the coefficient becomes -0.019",
    ),
    _fault(
        "overflows",
        "the coefficient has no upper bound",
        overflows,
        "finite_and_not_negative",
        "the coefficient becomes inf: it must be finite and at least 0",
    ),
    _fault("returns_nothing", "it has no return", returns_nothing, "finite_and_not_negative", "it returns NoneType"),
    _fault("counts_steps", "it divides by its own calls", counts_steps, "pure", "depends on earlier calls"),
    _fault(
        "wrong_sign",
        "the penalty falls as the divergence rises",
        wrong_sign,
        "more_divergence_never_lowers_it",
        "more divergence must not lower the penalty",
    ),
    _fault(
        "of_the_first_batch",
        "the first call in a process decides what later ones return",
        of_the_first_batch,
        "same_in_a_fresh_process",
        "in a process where the calls come in another order",
    ),
    _fault(
        "no_summary",
        "the summary is blank",
        adaptive,
        "summary",
        "say in one line",
        of_three,
        wrong_facts={"summary": " "},
    ),
    _fault("of_two", "it takes two arguments", of_two, "contract", "too many positional arguments", of_three),
    _fault(
        "not_there",
        "the target names nothing",
        "planted.kl_controllers:no_such_controller",
        "import",
        "has no 'no_such_controller'",
    ),
    _fault(
        "out_of_range",
        "a default is outside its range",
        with_options,
        "options",
        "target: must be greater than 0, not 0.0",
        "planted.kl_controllers:with_options",
        facts={"options": Options},
        wrong_facts={"options": OutOfRange},
    ),
    _fault(
        "no_help",
        "an option has no help",
        with_options,
        "help",
        "target without help",
        "planted.kl_controllers:with_options",
        facts={"options": Options},
        wrong_facts={"options": NoHelp},
    ),
]
