"""verl's ``global_profiler`` and the profilers of its roles, as ``trainer.profile``."""

from typing import Any

from corerl_verl.conversion import Conversion, is_number, is_true, shown

_ROLES = ("actor", "ref", "rollout", "critic")
_SECTIONS = ("global_profiler.", "profiler.", "trainer.profile", "trainer.npu_profile.")
_TOOLS = ("torch", "torch_memory")
_OFF = "nothing is profiled: verl's profiler needs global_profiler.tool and steps, and enable=True of a role"
_MERGED = "part of trainer.profile"
_CONTENTS = {"stack": "stacks", "shapes": "shapes", "memory": "memory"}


def profiles(conversion: Conversion) -> None:
    """Steps, ranks and roles of the profilers ``torch`` and ``torch_memory``."""
    given = conversion.given
    tool = given.get("global_profiler.tool", given.get("profiler.tool"))
    steps: Any = given.get("global_profiler.steps", given.get("profiler.steps", given.get("trainer.profile_steps")))
    roles = [role for role in _ROLES if is_true(given.get(f"{role}.profiler.enable")) and _is_there(conversion, role)]
    keys = [key for key in given if _is_profiler(key)]
    numbers = [step for step in steps if is_number(step)] if isinstance(steps, list) else []
    if not keys:
        return
    if tool is None or not numbers or not roles:
        for key in keys:
            conversion.drop(key, _OFF)
        return
    if tool not in _TOOLS:
        for key in keys:
            conversion.drop(key, f"CoreRL profiles with torch's own profiler, not with {tool}", "missing")
        return
    contents = {str(each) for key in keys if key.endswith(".contents") for each in _list(given[key])}
    profile: dict[str, Any] = {"steps": numbers, "ranks": _ranks(conversion, roles), "roles": roles}
    profile |= {_CONTENTS[each]: True for each in sorted(contents & _CONTENTS.keys())}
    if tool == "torch_memory":
        profile |= {"memory": True, "trace": False}
        most = given.get("global_profiler.global_tool_config.torch_memory.trace_alloc_max_entries")
        profile |= {"max_entries": most} if is_number(most) else {}
    conversion.values["trainer.profile"] = profile
    for key in keys:
        if key.endswith("save_path"):
            conversion.drop(key, "profiles are written into the run's folder")
        elif key.endswith("profile_continuous_steps") and is_true(given[key]):
            conversion.drop(key, "each step is a file of its own", "changed")
        else:
            del given[key]


def _is_there(conversion: Conversion, role: str) -> bool:
    used = ("actor.use_kl_loss", "algorithm.use_kl_in_reward")
    if role == "ref":
        return any(is_true(conversion.effective(key)) for key in used)
    return role != "critic" or conversion.has_critic


def _is_profiler(key: str) -> bool:
    return key.startswith(_SECTIONS) or ".profiler." in key


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ranks(conversion: Conversion, roles: list[str]) -> list[int] | None:
    """Those of all roles together; None: all."""
    given = conversion.given
    if any(is_true(given.get(f"{role}.profiler.all_ranks")) for role in roles):
        return None
    ranks = [rank for role in roles for rank in _list(given.get(f"{role}.profiler.ranks")) if is_number(rank)]
    of_roles = [shown(f"{role}.profiler.ranks", given.get(f"{role}.profiler.ranks")) for role in roles]
    if len({text.partition("=")[2] for text in of_roles}) > 1:
        conversion.remark(", ".join(of_roles), "CoreRL profiles the same ranks of all roles")
    return sorted({*ranks}) or [0]
