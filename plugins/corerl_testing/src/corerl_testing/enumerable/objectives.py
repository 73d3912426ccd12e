"""The objectives that entries claim, by name: functions whose gradient is compared with the expected one."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corerl.contracts.experience import Experience
from corerl.contracts.token_columns import TokenColumn
from corerl.contracts.token_outputs import OfLogits
from corerl.registry import load_object
from corerl_testing.enumerable.points import Point
from corerl_testing.results import CheckFailed

Columns = Callable[[Experience, Point, Tensor], Mapping[str, TokenColumn]]


@dataclass(frozen=True)
class Objective:
    """An objective of a policy.

    Attributes:
        value: (policy, size n of a group) -> scalar, differentiable in the policy's logits.
        binary: defined by games whose scores are 0 and 1.
        of_logits: of a policy loss with such a fact: the function in a game.
        columns: (batch, policy that samples with its reference, episode of each row) -> columns of tokens that such a
            loss reads.
    """

    value: Callable[[Point, int], Tensor]
    binary: bool = False
    of_logits: OfLogits | None = None
    columns: Columns | None = None


def expected_score(point: Point, n: int) -> Tensor:
    """E[s]."""
    return (point.probabilities * point.game.scores).sum()


def expected_components(point: Point, n: int) -> Tensor:
    """E[the sum of the components of the score]."""
    return (point.probabilities * point.game.components.sum(dim=1)).sum()


def best_score(point: Point, n: int) -> Tensor:
    """E[max(s_1, …, s_n)] of n independent episodes: the sum of s (F(s)^n - F(s-)^n) over scores s."""
    order = point.game.scores.argsort()
    reached = point.probabilities[order].cumsum(0).pow(n)
    gained = torch.diff(reached, prepend=torch.zeros(1, dtype=torch.float64))
    return (gained * point.game.scores[order]).sum()


def _success(point: Point) -> Tensor:
    """p = E[s], of scores 0 and 1."""
    return expected_score(point, 1)


def log_success(point: Point, n: int) -> Tensor:
    """-sum_(k=1)^(n-1) (1 - p)^k / k, the logarithm of p to order n - 1."""
    missing = 1 - _success(point)
    return -sum((missing**k / k for k in range(1, n)), torch.zeros((), dtype=torch.float64))


def normalised_success(point: Point, n: int) -> Tensor:
    """The integral over p of sum_k C(n, k) p^(k-1) (1-p)^(n-k-1) k (n-k) / n² / (sigma_k + 1e-6).

    k of n responses are right, with deviation sigma_k = sqrt(k (n-k) / n / (n-1)). As n grows this tends to
    2 arcsin(sqrt(p)).
    """
    nodes, weights = np.polynomial.legendre.leggauss(n)
    p = _success(point)
    at = p * torch.from_numpy(nodes + 1) / 2
    slope = torch.zeros_like(at)
    for k in range(1, n):
        deviation = math.sqrt(k * (n - k) / n / (n - 1)) + 1e-6
        slope = slope + math.comb(n, k) * at ** (k - 1) * (1 - at) ** (n - k - 1) * k * (n - k) / n**2 / deviation
    return (torch.from_numpy(weights) * slope).sum() * p / 2


def tokens_kl(point: Point, n: int = 1) -> Tensor:
    """E[the sum of each token's KL(pi || pi_ref)]; the probability of each prefix has no gradient."""
    log_probs, ref = point.vocabulary_log_probs, point.ref_vocabulary_log_probs
    return (point.probabilities.detach()[:, None] * (log_probs.exp() * (log_probs - ref)).sum(dim=2)).sum()


OBJECTIVES = {
    "expected score": Objective(expected_score),
    "expected sum of components": Objective(expected_components),
    "best score of the group": Objective(best_score),
    "log success rate to order n - 1": Objective(log_success, binary=True),
    "success rate over its deviation": Objective(normalised_success, binary=True),
    "minus the KL to the teacher": Objective(lambda point, n: -tokens_kl(point)),
}
"""name -> objective, of estimators and policy losses"""


def objective(name: str, options: Any = None) -> Objective:
    """The objective of this name, or at ``module:attribute``, where a function of the entry's options may be.

    Raises:
        CheckFailed: there is none.
    """
    if ":" in name:
        found = load_object(name)
        if callable(found) and not isinstance(found, Objective):
            found = found(options)
        if not isinstance(found, Objective):
            raise CheckFailed(f"it claims the objective {name}, which is no Objective of corerl_testing.enumerable")
        return found
    if name not in OBJECTIVES:
        raise CheckFailed(f"it claims the unknown objective '{name}'; known: {', '.join(OBJECTIVES)}, module:attribute")
    return OBJECTIVES[name]


_OPERATIONS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def factor(formula: str, n: int) -> float:
    """The value of a formula in n, such as ``"(n - 1) / n"``.

    Raises:
        CheckFailed: the formula has other parts than n, numbers, ``+ - * / **`` and parentheses.
    """

    def value(node: ast.AST) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.Name(id="n"):
                return n
            case ast.BinOp(left, operation, right) if type(operation) in _OPERATIONS:
                return _OPERATIONS[type(operation)](value(left), value(right))
        raise CheckFailed(f"its claimed factor '{formula}' must be a formula in n, such as (n - 1) / n")

    try:
        return float(value(ast.parse(formula, mode="eval").body))
    except SyntaxError:
        raise CheckFailed(f"its claimed factor '{formula}' is no formula") from None
