"""The commands that a shell script would start, with their expanded words; no program is started."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corerl_verl.shell.conditions import condition
from corerl_verl.shell.expansion import Variables, expand, now, text
from corerl_verl.shell.tokens import Token, mended, tokens

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=.*", re.DOTALL)
_SEPARATORS = ("\n", ";", "&")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_QUIET = ("true", ":", "echo", "printf", "set", "unset", "cd", "mkdir", "ulimit", "sleep", "wait", "read", "trap", "mv")
_MOST_CALLS = 200
"""of functions, loops and scripts within each other together"""
_DEEPEST = 20


@dataclass
class Script:
    """A script as far as it was read.

    Attributes:
        commands: expanded words of each command, in order.
        folder: of the script, for ``source``; None: no file.
        mended: whether a continuation over comments was repaired.
    """

    variables: Variables
    folder: Path | None = None
    commands: list[list[str]] = field(default_factory=list)
    functions: dict[str, list[Token]] = field(default_factory=dict)
    mended: bool = False
    calls: int = 0
    depth: int = 0
    ended: bool = False


def run(script: str, variables: Variables, folder: Path | None = None) -> Script:
    """Follow a script: assignments, arrays, ``if``, ``case``, ``for``, functions, ``source`` and ``eval``.

    Raises:
        ConfigError: a quote or a bracket has no end.
    """
    whole, changed = mended(script)
    state = Script(variables, folder, mended=changed)
    _Runner(state, tokens(whole)).block(())
    return state


def output(command: str, variables: Variables) -> str:
    """The output of ``$(command)`` for a few commands without effects; else the text ``$(command)``."""
    state = Script(variables)
    runner = _Runner(state, tokens(command), nested=True)
    runner.block(())
    printed = [line for words in state.commands if (line := _printed(words)) is not None]
    return "\n".join(printed) if printed else f"$({command})"


def _printed(words: Sequence[str]) -> str | None:
    match list(words):
        case ["echo", *rest]:
            return " ".join(word for word in rest if word not in ("-n", "-e"))
        case ["pwd"]:
            return "."
        case ["date", *rest]:
            form = next((word[1:] for word in rest if word.startswith("+")), "%Y-%m-%d")
            return now(form)
        case ["basename", path, *suffix]:
            return Path(path).name.removesuffix(suffix[0] if suffix else "")
        case ["dirname", path]:
            return str(Path(path).parent)
        case ["realpath" | "readlink", *_, path]:
            return path
    return None


class _Runner:
    """Runs tokens from a place; a skipped part is read without effects."""

    def __init__(self, state: Script, found: list[Token], nested: bool = False) -> None:
        self.state, self.found, self.nested = state, found, nested
        self.at = 0
        self.live = True

    def block(self, ends: tuple[str, ...]) -> None:
        """Commands up to one of the words ``ends``, which is not taken."""
        status = True
        while self.at < len(self.found):
            token = self.found[self.at]
            if token.operator and token.text != "(":
                if token.text in (")", ";;") and token.text in ends:
                    return
                self.at += 1
                if token.text in ("&&", "||") and self.live:
                    wanted = status if token.text == "&&" else not status
                    self.live = wanted
                    result = self.command(ends)
                    self.live = True
                    status = result if wanted else status
                elif token.text in ("&&", "||"):
                    self.command(ends)
                continue
            if not token.operator and token.text in ends:
                return
            status = self.command(ends)

    def command(self, ends: tuple[str, ...]) -> bool:
        """One command; its status, where it can be known."""
        self._newlines()
        token = self._peek()
        if token is None or (token.text in ends):
            return True
        match token.text:
            case "if":
                return self._if()
            case "case":
                return self._case()
            case "for":
                return self._for()
            case "while" | "until":
                return self._while()
            case "function":
                self.at += 1
                return self._function(self._take().text)
            case "{" | "(":
                self.at += 1
                self.block(("}" if token.text == "{" else ")",))
                self.at += 1
                return True
            case "[[":
                return self._test()
            case "!":
                self.at += 1
                return not self.command(ends)
        following = self.found[self.at + 1 : self.at + 3]
        if [each.text for each in following] == ["(", ")"] and re.fullmatch(r"[\w.:-]+", token.text):
            self.at += 3
            return self._function(token.text)
        return self._simple()

    def _peek(self) -> Token | None:
        return self.found[self.at] if self.at < len(self.found) else None

    def _take(self) -> Token:
        token = self._peek() or Token("\n", True)
        self.at += 1
        return token

    def _newlines(self) -> None:
        while (token := self._peek()) and token.operator and token.text in _SEPARATORS:
            self.at += 1

    def _skipping(self, live: bool, ends: tuple[str, ...]) -> None:
        before, self.live = self.live, self.live and live
        self.block(ends)
        self.live = before

    def _if(self) -> bool:
        done = False
        while True:
            self.at += 1  # if, elif
            holds = self._condition(("then",)) if self.live and not done else self._ignored(("then",))
            self.at += 1
            self._skipping(holds and not done, ("elif", "else", "fi"))
            done = done or holds
            word = self._peek()
            if word is None or word.text != "elif":
                break
        if word is not None and word.text == "else":
            self.at += 1
            self._skipping(not done, ("fi",))
        self.at += 1
        return True

    def _ignored(self, ends: tuple[str, ...]) -> bool:
        self._skipping(False, ends)
        return False

    def _condition(self, ends: tuple[str, ...]) -> bool:
        """A list of commands whose last status counts; a program fails, since its result is unknown."""
        nested, self.nested = self.nested, True
        status = self.command(ends)
        while (token := self._peek()) and token.text not in ends:
            self.at += 1
            if token.text in ("&&", "||"):
                other = self.command(ends)
                status = (status and other) if token.text == "&&" else (status or other)
            elif not token.operator or token.text == "|":
                self.command(ends)
                status = False
        self.nested = nested
        return status

    def _test(self) -> bool:
        words = []
        while (token := self._peek()) and token.text != "]]":
            if token.text != "\n":
                words.append(token.text)
            self.at += 1
        self.at += 1
        return condition(words[1:], self.state.variables) if self.live else False

    def _case(self) -> bool:
        self.at += 1
        subject = text(self._take().text, self.state.variables) if self.live else ""
        while (token := self._take()).text != "in":
            if self.at > len(self.found):
                return True
            del token
        done = False
        while True:
            self._newlines()
            token = self._take()
            if token.text == "esac" or self.at > len(self.found):
                return True
            patterns = [token.text] if token.text != "(" else []
            while (token := self._take()).text != ")" and self.at <= len(self.found):
                if token.text != "|":
                    patterns.append(token.text)
            holds = self.live and not done and any(self._fits(subject, pattern) for pattern in patterns)
            self._skipping(holds, (";;", "esac"))
            done = done or holds
            if (token2 := self._peek()) and token2.text == ";;":
                self.at += 1

    def _fits(self, subject: str, pattern: str) -> bool:
        import fnmatch

        return fnmatch.fnmatchcase(subject, text(pattern, self.state.variables))

    def _for(self) -> bool:
        self.at += 1
        name = self._take().text
        entries: list[str] | None = None
        while (token := self._peek()) and token.text != "do":
            self.at += 1
            if token.text == "in" and entries is None:
                entries = []
            elif not token.operator and entries is not None and self.live:
                entries += expand(token.text, self.state.variables)
        self.at += 1
        start = self.at
        self._skipping(False, ("done",))
        end = self.at
        for entry in (entries or []) if self.live else []:
            self.state.calls += 1
            if self.state.calls > _MOST_CALLS or entry.startswith("$("):
                break
            self.state.variables.scalars[name] = entry
            self.at = start
            self.block(("done",))
        self.at = end + 1
        return True

    def _while(self) -> bool:
        self.at += 1
        self._ignored(("do",))
        self.at += 1
        self._skipping(False, ("done",))
        self.at += 1
        return True

    def _function(self, name: str) -> bool:
        if (token := self._peek()) and token.text == "(":
            self.at += 2
        self._newlines()
        self.at += 1  # {
        start = self.at
        self._skipping(False, ("}",))
        if self.live:
            self.state.functions[name] = self.found[start : self.at]
        self.at += 1
        return True

    def _simple(self) -> bool:
        raw: list[str] = []
        while (token := self._peek()) and not token.operator:
            raw.append(token.text)
            self.at += 1
        if (token := self._peek()) and token.text == "(" and not raw:
            self.at += 1
        if not self.live or self.state.ended:
            return True
        return self._execute(raw)

    def _execute(self, raw: list[str]) -> bool:
        variables = self.state.variables
        while raw and _ASSIGNMENT.fullmatch(raw[0]):
            variables.assign(raw.pop(0))
        if raw and raw[0] in _DECLARING:
            for word in raw[1:]:
                if _ASSIGNMENT.fullmatch(word):
                    variables.assign(word)
            return True
        words = [each for word in raw for each in expand(word, variables)]
        return self._call(words) if words else True

    def _call(self, words: list[str]) -> bool:
        if words[0] in self.state.functions:
            return self._function_call(words)
        match words:
            case ["[", *test, "]"] | ["test", *test]:
                return condition([f"'{word}'" if word else "''" for word in test], self.state.variables)
            case ["eval", *rest]:
                return self._inner(" ".join(rest))
            case ["source" | ".", file, *_]:
                path = self.state.folder / file if self.state.folder else None
                return self._inner(path.read_text()) if path is not None and path.is_file() else True
            case ["shift", *rest]:
                del self.state.variables.arguments[: int(rest[0]) if rest and rest[0].isdigit() else 1]
                return True
            case ["exit", *_]:
                self.state.ended = True
                return False
            case ["false"]:
                return False
        self.state.commands.append(words)
        return words[0] in _QUIET or not self.nested

    def _function_call(self, words: list[str]) -> bool:
        variables = self.state.variables
        before, variables.arguments = variables.arguments, words[1:]
        self._within(self.state.functions[words[0]])
        variables.arguments = before
        return True

    def _inner(self, script: str) -> bool:
        self._within(tokens(mended(script)[0]))
        return True

    def _within(self, found: list[Token]) -> None:
        state = self.state
        state.calls += 1
        state.depth += 1
        if state.calls <= _MOST_CALLS and state.depth <= _DEEPEST:
            _Runner(state, found).block(())
        state.depth -= 1
