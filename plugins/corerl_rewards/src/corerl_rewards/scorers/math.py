r"""Scorer of MATH (Hendrycks et al., 2021, arXiv 2103.03874) and of any set with answers in ``\boxed{}``."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import MathOptions
from corerl_rewards.scorers.alternatives import boxed_answer
from corerl_rewards.scorers.characters import answer_text
from corerl_rewards.scorers.equality import equal_answers, readable_truth

if importlib.util.find_spec("math_verify") is None:
    raise ImportError("the scorer 'math' needs math-verify (pip install math-verify)")

_DEFAULT = MathOptions()


def math(
    response: str,
    ground_truth: Any,
    data_source: str,
    extra_info: Mapping[str, Any],
    options: MathOptions = _DEFAULT,
) -> Mapping[str, Any]:
    r"""1.0 if the last ``\boxed{}`` of the response equals ``ground_truth``, else 0.0.

    Boxes joined to it, as in ``\boxed{5} or \boxed{7}``, are one answer with it.

    Raises:
        ValueError: ``ground_truth`` is empty.
        TimeoutError: math-verify took longer than ``options.timeout``.
    """
    truth = readable_truth(ground_truth)
    answer = boxed_answer(answer_text(response, options))
    return {"score": float(bool(answer) and equal_answers(str(answer), truth, options.timeout)), "extracted": answer}
