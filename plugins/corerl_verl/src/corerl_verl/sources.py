"""What the user gives to ``corerl config from-verl``: a script, a YAML config of verl, or a command line."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from corerl.errors import ConfigError
from corerl.files import read_text
from corerl_verl import hydra
from corerl_verl.conversion import Kind, Remark, shown
from corerl_verl.from_verl import Converted, convert
from corerl_verl.keys import PREFIX
from corerl_verl.launches import Launch, of_script, of_words
from corerl_verl.versions import versions

_MENDED = Remark(
    "changed",
    ("the script",),
    "bash ends the command at a comment between its lines; the lines behind it are read here",
)
_PASSED = Remark(
    "changed",
    ("the script",),
    "a check of files, programs, variables or arguments would end the script here; the lines behind it are read",
)
_IDLE = "without effect, given the other arguments"
_UNREAD = "has no effect: a text is not read here"
_PROBES: tuple[Any, ...] = (5, 0.25, True, False, "other")
_NO_WORD = re.compile(r"\$[A-Za-z_]\w*")
SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch")
CONFIGS = (".yaml", ".yml")


class Source(NamedTuple):
    """A command of verl.

    Attributes:
        launch: the module and its arguments.
        config: flat values of a YAML config of verl beneath the arguments.
        remarks: about the reading.
        folder: of the script or the config.
        number: of trainings that the script starts.
        environment: variables of the process.
    """

    launch: Launch
    config: dict[str, Any]
    remarks: tuple[Remark, ...]
    folder: Path
    number: int = 1
    environment: Mapping[str, str] = {}


def read(words: Sequence[str], environment: Mapping[str, str], launch: int = 1) -> Source:
    """The command of a script (``.sh``), of a config of verl (``.yaml``), or of the words themselves.

    Args:
        words: a file and further arguments, which a script gets as ``"$@"``; or ``KEY=VALUE…``.
        launch: which training of a script, from 1.

    Raises:
        ConfigError: no file, no training, no such launch.
    """
    first = Path(words[0]) if words else Path()
    is_file = "=" not in words[0] if words else False
    if is_file and first.suffix in CONFIGS:
        arguments = list(words[1:])
        found = Source(Launch("verl.trainer.main_ppo", arguments), _yaml(first), (), first.parent)
    elif is_file and first.suffix in SCRIPTS:
        found = _script(first, words[1:], environment, launch)
    else:
        found = Source(of_words(words), {}, (), Path())
    return found._replace(environment=environment)


def _script(file: Path, arguments: Sequence[str], environment: Mapping[str, str], launch: int) -> Source:
    overrides = [each for each in arguments if "=" in each or each.startswith("--")]
    found = of_script(_text(file), environment, arguments, file.parent)
    number = len(found.launches)
    if not 1 <= launch <= number:
        raise ConfigError("", f"--launch: the script starts {number} trainings, not {launch}")
    chosen = found.launches[launch - 1]
    remarks = [remark for remark, holds in ((_MENDED, found.mended), (_PASSED, found.passed)) if holds]
    if number > 1:
        others = "--launch selects another one"
        remarks.append(Remark("changed", (f"training {launch} of {number}",), f"the script starts {number}; {others}"))
    nothing = tuple(each for each in chosen.arguments if _NO_WORD.fullmatch(each))
    if nothing:
        remarks.append(Remark("changed", nothing, "is set nowhere: the command gets no word for it"))
    own = [each for each in chosen.arguments if each not in nothing]
    missing = [each for each in overrides if each not in chosen.arguments]
    return Source(Launch(chosen.module, [*own, *missing]), {}, tuple(remarks), file.parent, number)


def _text(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("", f"cannot read {file}: {error}") from None


def _yaml(file: Path) -> dict[str, object]:
    return hydra.from_yaml(_text(file), str(file))


def converted(source: Source, version: str | None = None, thorough: bool = False) -> Converted:
    """The config of a command; a ``--config-name`` of the user's own is read beside the script.

    Args:
        thorough: convert once more without each kept argument, and name those that change nothing.

    Raises:
        ConfigError: an argument is malformed; ``version`` is unknown.
    """
    if version is not None and version not in versions():
        raise ConfigError("", f"--verl: must be one of {', '.join(versions())}, not {version}")
    arguments = hydra.parse(source.launch.arguments)
    beneath = dict(source.config)
    if arguments.name and (file := _own_config(arguments, source.folder)):
        beneath |= _yaml(file)
        arguments.name = "ppo_megatron_trainer" if "megatron" in arguments.name else None
    arguments.values = {key: value for key, value in beneath.items() if key not in arguments.values} | arguments.values
    result = convert(arguments, source.launch.module, version, source.environment)
    result = result._replace(remarks=[*source.remarks, *result.remarks])
    return _without_idle(result, arguments, source) if thorough else result


def _without_idle(result: Converted, arguments: hydra.Arguments, source: Source) -> Converted:
    """Arguments without effect on the config are not kept: the others leave them idle, or their value is not read."""

    def outcome(values: dict[str, Any]) -> tuple[Any, list[Remark]]:
        other = convert(
            replace(arguments, values=values), source.launch.module, result.version, source.environment, accept=False
        )
        return other.values, other.remarks

    whole = outcome(arguments.values)[0]
    found: dict[str, list[str]] = {}
    names: set[str] = set()
    for key, value in arguments.values.items():
        name = key.removeprefix(PREFIX)
        without = {other: each for other, each in arguments.values.items() if other != key}
        if name not in result.kept or value is None or outcome(without)[0] != whole:
            continue
        seen = [outcome({**without, key: probe}) for probe in _PROBES]
        reads_texts = seen[-1] != outcome({**without, key: "another"})
        if all(each == seen[0] for each in seen):
            found.setdefault(_IDLE, []).append(shown(name, value))
            names.add(name)
        elif isinstance(value, str) and not reads_texts and seen[-1][0] == whole:
            found.setdefault(_UNREAD, []).append(shown(name, value))
            names.add(name)
    kinds: dict[str, Kind] = {_IDLE: "harmless", _UNREAD: "changed"}
    more = [Remark(kinds[reason], tuple(each), reason) for reason, each in found.items()]
    return result._replace(kept=[key for key in result.kept if key not in names], remarks=[*result.remarks, *more])


def _own_config(arguments: hydra.Arguments, folder: Path) -> Path | None:
    for place in (folder / (arguments.path or "config"), folder, Path(arguments.path or "config")):
        file = place / f"{arguments.name}.yaml"
        try:
            found = file.is_file()
        except (OSError, ValueError):  # no name of a file
            found = False
        if found:
            return file
    return None
