"""What the user gives to ``corerl config from-verl``: a script, a YAML config of verl, or a command line."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corerl.errors import ConfigError
from corerl.files import read_text
from corerl_verl import hydra
from corerl_verl.conversion import Remark
from corerl_verl.from_verl import Converted, convert
from corerl_verl.launches import Launch, of_script, of_words
from corerl_verl.versions import versions

_MENDED = Remark(
    "changed",
    ("the script",),
    "bash ends the command at a comment between its lines; the lines behind it are read here",
)
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
    """

    launch: Launch
    config: dict[str, object]
    remarks: tuple[Remark, ...]
    folder: Path
    number: int = 1


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
        return Source(Launch("verl.trainer.main_ppo", arguments), _yaml(first), (), first.parent)
    if is_file and first.suffix in SCRIPTS:
        return _script(first, words[1:], environment, launch)
    return Source(of_words(words), {}, (), Path())


def _script(file: Path, arguments: Sequence[str], environment: Mapping[str, str], launch: int) -> Source:
    overrides = [each for each in arguments if "=" in each or each.startswith("--")]
    found = of_script(_text(file), environment, arguments, file.parent)
    number = len(found.launches)
    if not 1 <= launch <= number:
        raise ConfigError("", f"--launch: the script starts {number} trainings, not {launch}")
    chosen = found.launches[launch - 1]
    remarks = [_MENDED] if found.mended else []
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


def converted(source: Source, version: str | None = None) -> Converted:
    """The config of a command; a ``--config-name`` of the user's own is read beside the script.

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
    arguments.added |= set(beneath)
    result = convert(arguments, source.launch.module, version)
    return result._replace(remarks=[*source.remarks, *result.remarks])


def _own_config(arguments: hydra.Arguments, folder: Path) -> Path | None:
    for place in (folder / (arguments.path or "config"), folder, Path(arguments.path or "config")):
        file = place / f"{arguments.name}.yaml"
        if file.is_file():
            return file
    return None
