"""What a command of a script reads and writes: here-documents, texts, files that the script writes."""

import re
from collections.abc import Sequence
from posixpath import basename, normpath

from corerl_verl.shell.expansion import Variables, document, expand, text
from corerl_verl.shell.script import Script

_SHELL = re.compile(r"(bash|sh|zsh|dash|ksh)")
_SUBMITS = ("sbatch", "qsub", "bsub")
_STARTS = re.compile("main_|verl|async_main")
_COPIES = ("cat", "tee")
_ASSIGNED = re.compile(r"\b(\w{1,99})(?:\[[^]\n]{0,99}\])?\+?=")
_ARRAY = re.compile(r"(\"?)\$\{(\w+)\[[@*]\]\}\1")


def assigned(script: str) -> set[str]:
    """Names that any line of a script assigns."""
    return {*_ASSIGNED.findall(script)}


def fields(raw: str, state: Script) -> list[str]:
    """The fields of a raw word of a command; an array that no line assigns stays as its name."""
    match, variables = _ARRAY.fullmatch(raw), state.variables
    if match and match[2] not in {*variables.arrays, *state.assigned} and variables.get(match[2]) is None:
        variables.unset.add(match[2])
        return [f"${match[2]}"]
    return expand(raw, variables)


def given(redirections: Sequence[str], variables: Variables) -> tuple[str | None, str | None]:
    """The text of a command's input, and the file of its output; None: not redirected, or not known.

    Args:
        redirections: texts of tokens, as :class:`corerl_verl.shell.tokens.Token` has them.
    """
    read, file = None, None
    for each in redirections:
        if each.startswith(">"):
            file = text(each[1:], variables)
            continue
        sign, raw = each[:3], each[3:]
        match sign:
            case "<<=":
                read = raw
            case '<<"':
                read = document(raw, variables)
            case "<<<":
                read = text(raw, variables) + "\n"
            case _:
                read = _output(raw[:-1], variables)
    return read, file


def _output(command: str, variables: Variables) -> str | None:
    from corerl_verl.shell.run import output

    found = output(command, variables)
    return None if found.startswith("$(") else found + "\n"


def copied(words: Sequence[str], read: str | None) -> list[str]:
    """A copy of a known input as the command that prints it; other words are unchanged."""
    copies = read is not None and words[0] in _COPIES and all(word.startswith("-") for word in words[1:])
    return ["printf", "%s", read] if copies and read is not None else list(words)


def written(words: Sequence[str], read: str | None, file: str | None, state: Script) -> bool:
    """Keep the text that a command writes into a file; False: it is not known, or goes to no file."""
    content = state.piped
    if words[0] == "tee" and read is not None:
        content, file = read, next((word for word in words[1:] if not word.startswith("-")), file)
    if file is None or content is None:
        return False
    state.files[normpath(file)] = content
    return True


def commands(words: Sequence[str], read: str | None, state: Script) -> tuple[str, list[str]] | None:
    """The script that a command runs, and the script's arguments; None: it runs no shell script known here.

    It is the command's input, or a file that the script has written, or one beside it, for a shell or a scheduler.
    """
    shell = next((at for at, word in enumerate(words) if _SHELL.fullmatch(basename(word))), None)
    submits = words[0] in _SUBMITS
    if read is not None and _STARTS.search(read):
        rest = words[shell + 1 :] if shell is not None else []
        if shell is not None and ("-s" in rest or all(word.startswith("-") for word in rest)):
            after = rest[rest.index("-s") + 1 :] if "-s" in rest else []
            return read, [word for word in after if word != "--"]
        if submits or (words[0] == "ssh" and shell is None and not {*_COPIES} & {*words}):
            return read, []
    first = 0 if shell is None and not submits else 1 + (shell or 0)
    for at in range(first, len(words) if first else 1):
        content = beside(words[at], state) if first or normpath(words[at]) in state.files else None
        if content is not None and _STARTS.search(content):
            return content, list(words[at + 1 :])
    return None


def beside(name: str, state: Script) -> str | None:
    """The text of a file that the script has written, or of one in the script's folder."""
    if (content := state.files.get(normpath(name))) is not None or state.folder is None:
        return content
    try:
        return (state.folder / name).read_text()
    except (OSError, ValueError):  # none, a folder, no name of a file, no text
        return None
