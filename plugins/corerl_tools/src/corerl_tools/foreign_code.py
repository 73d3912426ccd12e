"""Code outside of CoreRL that raised an error: a file that a config names, or the plugin of another distribution."""

import traceback

from corerl.registry.installed import plugin_points


def raised_there(error: BaseException) -> str | None:
    """The error, with function, file and line of the innermost call of such code; None without one."""
    packages = {each.value.partition(".")[0].partition(":")[0] for each in plugin_points()}
    packages = {each for each in packages if each != "corerl" and not each.startswith("corerl_")}
    place = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("corerl_file_") or module.partition(".")[0] in packages:
            place = f"in {frame.f_code.co_name} ({frame.f_code.co_filename}, line {line})"
    return None if place is None else f"{error}, {place}"
