"""verl's ``override_config`` of models: values of ``config.json``, and settings that CoreRL has elsewhere."""

from collections.abc import Mapping
from typing import Any

from corerl_verl.conversion import Conversion, shown

_KEY = "model.override_config"
_EMPTY: tuple[Any, ...] = (None, {}, False)


def overrides(conversion: Conversion) -> None:
    """Nested values of ``model.override_config``; the critic's own are those of the policy, or are named."""
    found = _taken(conversion, _KEY)
    for name in list(found):
        attention = name in ("attn_implementation", "_attn_implementation")
        if attention:
            conversion.values["model.attn_implementation"] = found.pop(name)
        elif name.endswith(("dropout", "pdrop")):
            _leave(conversion, name, found.pop(name), "models are trained without dropout")
        elif name == "use_cache":
            _leave(conversion, name, found.pop(name), "a matter of generation in transformers", "harmless")
    if found:
        conversion.values[_KEY] = found
    if conversion.has_critic:
        _of_critic(conversion, found)


def _of_critic(conversion: Conversion, policy: Mapping[str, Any]) -> None:
    """verl's critic has overrides and adapters of its own, by default none."""
    own = {name: value for name, value in _taken(conversion, f"critic.{_KEY}").items() if not name.endswith("dropout")}
    if own != policy:
        conversion.values[f"critic.{_KEY}"] = own
    names = ("lora_rank", "lora_alpha", "target_modules")
    adapted = conversion.effective("model.lora_rank") or conversion.effective("critic.model.lora_rank")
    for name in names if adapted else ():
        value = conversion.effective(f"critic.model.{name}")
        if value is not None and value != conversion.effective(f"model.{name}"):
            conversion.values[f"critic.model.{name}"] = value
    for name in names:
        conversion.given.pop(f"critic.model.{name}", None)


def _leave(conversion: Conversion, name: str, value: Any, reason: str, kind: Any = None) -> None:
    kind = kind or ("harmless" if not value else "changed")
    conversion.remark(shown(f"{_KEY}.{name}", value), reason, kind)


def _taken(conversion: Conversion, key: str) -> dict[str, Any]:
    """Values of ``config.json``; those of megatron's section ``model_config``, too."""
    whole = conversion.take(key, {})
    found = dict(whole) if isinstance(whole, Mapping) else {}
    for name, value in conversion.take_section(key).items():
        *sections, last = name.lstrip("+").split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    experts, inner = found.pop("moe_config", None), found.pop("model_config", None)
    found |= inner if isinstance(inner, Mapping) else {}
    if isinstance(experts, Mapping) and any(value not in _EMPTY for value in experts.values()):
        conversion.remark(shown(f"{key}.moe_config", experts), "CoreRL freezes no routers", "missing")
    return found
