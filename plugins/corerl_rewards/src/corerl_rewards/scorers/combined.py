"""A scorer made of other scorers: the weighted sum of named components, each logged as ``reward/<name>``.

::

    reward:
      scorer:
        name: combined
        components:
          accuracy: {scorer: math, weight: 1.0}
          format: {scorer: format, weight: 0.2}
          brevity: {scorer: {name: length, longest: 2000}, weight: 0.1}

score = Σ weight · component. A component of weight 0 is only logged. Advantage estimators that use components
separately (``gdpo``) get them without the weights.
"""

from collections.abc import Mapping
from typing import Any

from corerl_rewards.options import CombinedOptions


def combined(
    response: str, ground_truth: Any, data_source: str, extra_info: Mapping[str, Any], options: CombinedOptions
) -> Mapping[str, Any]:
    """The weighted sum, the components by name, and ``extracted`` of the first component that extracted anything.

    Further values of a component are named ``<component>/<part>``. If a component raises, this scorer raises.
    """
    parts: dict[str, Any] = {"score": 0.0, "extracted": None}
    for name, component in options.components.items():
        value = component.scorer(response, ground_truth, data_source, extra_info)
        given = dict(value) if isinstance(value, Mapping) else {"score": value}
        extracted = given.pop("extracted", None)
        if parts["extracted"] is None:
            parts["extracted"] = extracted
        parts[name] = float(given.pop("score"))
        parts["score"] += component.weight * parts[name]
        parts.update({f"{name}/{part}": number for part, number in given.items()})
    return parts
