"""The enumerable kit: expected gradients of estimators, losses and corrections, by a sum over all episodes.

A game (:mod:`~corerl_testing.enumerable.games`) has so few episodes that every group of them can be listed. The
expectation over groups (:mod:`~corerl_testing.enumerable.expectation`) is then exact, and can be compared with the
gradient of an objective (:mod:`~corerl_testing.enumerable.objectives`), in float64. Checks of the kit compare them as
the entry claims (:mod:`~corerl_testing.enumerable.claims`).
"""

from corerl_testing.enumerable.expectation import Sampled, Update, estimated, expected_gradient, sampled
from corerl_testing.enumerable.games import GAMES, Game, Reply
from corerl_testing.enumerable.objectives import OBJECTIVES, Objective
from corerl_testing.enumerable.points import Point

__all__ = [
    "GAMES",
    "OBJECTIVES",
    "Game",
    "Objective",
    "Point",
    "Reply",
    "Sampled",
    "Update",
    "estimated",
    "expected_gradient",
    "sampled",
]
