"""The commands of a shell script that start verl, and which of them train."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corerl.errors import ConfigError
from corerl_verl.shell.expansion import Variables
from corerl_verl.shell.run import run

_TRAINING = re.compile(r"(^|[._])(main_(ppo|dapo|fapo|entropy)(_\w+)?|fully_async_main|main_one_step\w*)$")
_PYTHON = re.compile(r"(.*/)?(python[\d.]*|torchrun|py)$")
_OTHERS: Mapping[str, str] = {
    r"sft_trainer": "supervised fine-tuning: `corerl sft` (docs/sft.md)",
    r"main_generation": "generation: `corerl generate --model DIR --data FILE --n N --out OUT` (docs/evaluation.md)",
    r"main_eval": "evaluation: `corerl eval FILE --scorer ./file.py:function` (docs/evaluation.md)",
    r"model_merger": "a merge of checkpoints: `corerl export CHECKPOINT DIR` (docs/resuming.md)",
    r"data_preprocess": "preparation of data: `corerl prepare NAME --out DIR` (docs/data.md)",
    r"dpo": "preference training: `corerl dpo` (docs/preference.md)",
    r"main_(prime|spin|sppo|transfer)|recipe\.|dance|flowgrpo|diffusion|flow": "a trainer of its own, without a "
    "counterpart in CoreRL",
}
_NAMES_ONLY = ("echo", ":", "printf", "true", "alias", "type", "which", "grep", "cat")
"""commands whose words are texts"""


class Launch(NamedTuple):
    """A command that starts a module of verl."""

    module: str
    arguments: list[str]

    @property
    def trains(self) -> bool:
        """Whether it is a training whose arguments are those of ``verl.trainer.main_ppo``."""
        return _TRAINING.search(self.module) is not None


class Found(NamedTuple):
    """The trainings of a script.

    Attributes:
        launches: in order.
        unset: variables that are set neither in the script nor in the environment.
        mended: whether bash would end a command at a comment.
        passed: whether the script would end with a failure before its training.
    """

    launches: list[Launch]
    unset: set[str]
    mended: bool
    passed: bool


def of_script(
    text: str, environment: Mapping[str, str], arguments: Sequence[str] = (), folder: Path | None = None
) -> Found:
    """The trainings that a script starts.

    Args:
        arguments: ``$1``, …, which replace ``"$@"``.
        folder: of the script, for ``source``.

    Raises:
        ConfigError: it starts no training, or it has an open quote or bracket.
    """
    launches: list[Launch] = []
    try:
        for passes in (False, True):  # a check that fails here may hold on the machine of the training
            script = run(text, Variables(environment, list(arguments)), folder, passes)
            launches = [launch for words in script.commands if (launch := _launch(words)) is not None]
            training = [launch for launch in launches if launch.trains]
            if training:
                return Found(training, script.variables.unset, script.mended, script.passed)
    except RecursionError:
        raise ConfigError("", "the script has too many brackets within each other") from None
    raise ConfigError("", _refusal(launches))


def of_words(words: Sequence[str]) -> Launch:
    """A command line, with or without ``python3 -m verl.trainer.main_ppo`` before the arguments.

    Raises:
        ConfigError: it starts another module.
    """
    launch = _launch(words)
    if launch is None:
        return Launch("verl.trainer.main_ppo", list(words))
    if not launch.trains:
        raise ConfigError("", _refusal([launch]))
    return launch


def _launch(words: Sequence[str]) -> Launch | None:
    """The module that a command starts, by ``-m module`` or ``file.py`` behind a program of Python."""
    if words[:1] and words[0] in _NAMES_ONLY:
        return None
    python = False
    for at, word in enumerate(words):
        if python and word == "-m" and at + 1 < len(words):
            return Launch(words[at + 1], list(words[at + 2 :]))
        if python and word.endswith(".py") and "=" not in word:
            return Launch(word.removesuffix(".py").lstrip("./").replace("/", "."), list(words[at + 1 :]))
        if word == "-m" and at + 1 < len(words) and words[at + 1].startswith(("verl.", "recipe.")):
            return Launch(words[at + 1], list(words[at + 2 :]))
        python = python or bool(_PYTHON.match(word)) or "$(which python" in word or word.startswith("$PYTHON")
    return None


def _refusal(launches: Sequence[Launch]) -> str:
    for launch in launches:
        for pattern, purpose in _OTHERS.items():
            if re.search(pattern, launch.module):
                return f"{launch.module} starts no training of verl.trainer.main_ppo, but {purpose}"
    if launches:
        return f"{launches[0].module} is no training of verl that CoreRL knows; verl.trainer.main_ppo is one"
    return "no command here starts verl; one is `python3 -m verl.trainer.main_ppo KEY=VALUE…`"
