"""The commands that a shell script would start, with their expanded words; no program is started."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

from corerl_verl.shell.builtins import builtin, count, declare
from corerl_verl.shell.conditions import condition
from corerl_verl.shell.expansion import ASSIGNMENT, Variables, arithmetic, expand, text
from corerl_verl.shell.printed import printed
from corerl_verl.shell.script import Script
from corerl_verl.shell.streams import assigned, beside, commands, copied, fields, given, written
from corerl_verl.shell.tokens import Token, mended, tokens

_SEPARATORS = ("\n", ";", "&")
_DECLARING = ("export", "declare", "local", "readonly", "typeset")
_QUIET = ("true", ":", "echo", "printf", "set", "unset", "cd", "mkdir", "ulimit", "sleep", "wait", "trap", "mv")
_STARTS = re.compile("main_|verl")  # in a script of ``bash -c`` that is followed
_PIPES = ("|", "|&")
_MOST_CALLS = 200
"""of functions, loops and scripts within each other together"""
_DEEPEST = 20


def run(script: str, variables: Variables, folder: Path | None = None, passes: bool = False) -> Script:
    """Follow a script: assignments, arrays, arithmetic, conditions, loops, functions, ``source`` and ``eval``.

    Args:
        passes: go on behind an ``exit`` with a failure, which is a check of the script on its own machine.

    Raises:
        ConfigError: a quote or a bracket has no end.
    """
    whole, changed = mended(script)
    state = Script(variables, folder, mended=changed, passes=passes, assigned=assigned(whole))
    _Runner(state, tokens(whole)).block(())
    return state


def output(command: str, variables: Variables) -> str:
    """The output of ``$(command)`` for a few commands without effects; else the text ``$(command)``."""
    state = Script(variables.copy())
    _Runner(state, tokens(command), nested=True).block(())
    pieces = [piece for words in state.commands if (piece := printed(words)) is not None]
    return "".join(pieces).rstrip("\n") if pieces and not state.has_pipe else f"$({command})"


class _Runner:
    """Runs tokens from a place; a skipped part is read without effects."""

    def __init__(self, state: Script, found: list[Token], nested: bool = False) -> None:
        self.state, self.found, self.nested = state, found, nested
        self.at = 0
        self.live = True
        self.unknown = False  # a condition depended on a program

    @property
    def runs(self) -> bool:
        """Whether the present command has effects."""
        return self.live and not self.state.jump

    def block(self, ends: tuple[str, ...]) -> None:
        """Commands up to one of the words ``ends``, which is not taken."""
        status = True
        while self.at < len(self.found):
            token = self.found[self.at]
            if token.operator and token.text != "(":
                if token.text in (")", ";;") and token.text in ends:
                    return
                self.at += 1
                self.state.has_pipe |= self.live and token.text in _PIPES
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
            case "{":
                self.at += 1
                self.block(("}",))
                self.at += 1
                return True
            case "(":
                return self._subshell()
            case "[[":
                return self._test()
            case "!":
                self.at += 1
                return not self.command(ends)
        if token.text.startswith("(("):
            self.at += 1
            return self._arithmetic(token.text[2:-2]) if self.runs else True
        following = self.found[self.at + 1 : self.at + 3]
        if [each.text for each in following] == ["(", ")"] and re.fullmatch(r"[\w.:-]+", token.text):
            self.at += 3
            return self._function(token.text)
        return self._simple()

    def _subshell(self) -> bool:
        """Its variables and its ``exit`` are its own."""
        state = self.state
        before, jump = state.variables, state.jump
        state.variables = before.copy()
        self.at += 1
        self.block((")",))
        self.at += 1
        state.variables, state.jump = before, jump
        return True

    def _arithmetic(self, expression: str) -> bool:
        value = arithmetic(expression, self.state.variables)
        self.unknown |= value is None
        return bool(value)

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
            holds = self.runs and not done and self._condition(("then",))
            self._skipping(False, ("then",))
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
            if token.text != "\n" and not token.redirects:
                words.append(token.text)
            self.at += 1
        self.at += 1
        return condition(words[1:], self.state.variables) if self.runs else False

    def _case(self) -> bool:
        self.at += 1
        subject = self._take().text
        subject = text(subject, self.state.variables) if self.runs else ""
        while self._take().text != "in":
            if self.at > len(self.found):
                return True
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
            fits = (fnmatchcase(subject, text(pattern, self.state.variables)) for pattern in patterns)
            holds = self.runs and not done and any(fits)
            self._skipping(holds, (";;", "esac"))
            done = done or holds
            if (token2 := self._peek()) and token2.text == ";;":
                self.at += 1

    def _for(self) -> bool:
        self.at += 1
        name = self._take().text
        if name.startswith("(("):
            return self._counted(*f"{name[2:-2]};;".split(";")[:3])
        entries: list[str] | None = None
        while (token := self._peek()) and token.text != "do":
            self.at += 1
            if token.text == "in" and entries is None:
                entries = []
            elif not (token.operator or token.redirects) and entries is not None and self.runs:
                entries += expand(token.text, self.state.variables)
        start, end = self._body()
        for entry in (self.state.variables.arguments[:] if entries is None else entries) if self.runs else []:
            if entry.startswith("$(") or not self._again():
                break
            self.state.variables.put(name, entry)
            if self._left(start):
                break
        self.at = end
        return True

    def _counted(self, first: str, condition: str, step: str) -> bool:
        """``for ((first; condition; step))``."""
        while (token := self._peek()) and token.text != "do":
            self.at += 1
        start, end = self._body()
        if self.runs:
            self._arithmetic(first)
            while self._again() and (not condition.strip() or self._arithmetic(condition)) and not self._left(start):
                self._arithmetic(step)
        self.at = end
        return True

    def _while(self) -> bool:
        """A loop whose condition depends on a program is left out."""
        ends_with = self._take().text == "until"
        condition = self.at
        self._skipping(False, ("do",))
        start, end = self._body()
        while self.runs and self._again():
            self.at, self.unknown = condition, False
            holds = self._condition(("do",))
            if self.unknown or holds == ends_with or self._left(start):
                break
        self.at = end
        return True

    def _body(self) -> tuple[int, int]:
        """From ``do``: the places of the body's first command, and behind ``done``."""
        self.at += 1
        start = self.at
        self._skipping(False, ("done",))
        return start, self.at + 1

    def _again(self) -> bool:
        self.state.calls += 1
        return self.state.calls <= _MOST_CALLS

    def _left(self, start: int) -> bool:
        """Run the body of a loop; whether the loop ends."""
        state, self.at = self.state, start
        self.block(("done",))
        if state.jump not in ("break", "continue"):
            return bool(state.jump)
        state.levels -= 1
        if state.levels > 0:
            return True
        ends, state.jump = state.jump == "break", ""
        return ends

    def _function(self, name: str) -> bool:
        if (token := self._peek()) and token.text == "(":
            self.at += 2
        self._newlines()
        self.at += 1  # {
        start = self.at
        self._skipping(False, ("}",))
        if self.runs:
            self.state.variables.functions[name] = self.found[start : self.at]
        self.at += 1
        return True

    def _simple(self) -> bool:
        follows = next((each for each in reversed(self.found[: self.at]) if each.text != "\n"), None)
        piped = self.state.piped if follows and follows.operator and follows.text in _PIPES else None
        raw: list[str] = []
        redirections: list[str] = []
        while (token := self._peek()) and not token.operator:
            (redirections if token.redirects else raw).append(token.text)
            self.at += 1
        if (token := self._peek()) and token.text == "(" and not raw:
            self.at += 1
        return self._execute(raw, redirections, piped) if self.runs else True

    def _execute(self, raw: list[str], redirections: list[str], piped: str | None) -> bool:
        variables = self.state.variables
        count = next((place for place, word in enumerate(raw) if not ASSIGNMENT.fullmatch(word)), len(raw))
        assignments, raw = raw[:count], raw[count:]
        if raw and raw[0] in _DECLARING:
            declare(raw, variables, self.state.scopes)
            return True
        words = [each for word in raw for each in fields(word, self.state)]
        if not words:
            for word in assignments:
                variables.assign(word)
            return True
        with variables.for_one_command(assignments):
            read, file = given(redirections, variables)
            return self._with_streams(words, piped if read is None else read, file)

    def _with_streams(self, words: list[str], read: str | None, file: str | None) -> bool:
        """A command with the text of its input, and the file of its output."""
        words = copied(words, read)
        self.state.piped = printed(words)
        if written(words, read, file, self.state):
            return True
        found = commands(words, read, self.state)
        return self._call(words, read) if found is None else self._shell(*found)

    def _call(self, words: list[str], read: str | None) -> bool:
        variables = self.state.variables
        if words[0] in variables.functions:
            return self._function_call(words)
        match words:
            case ["[", *test, "]"] | ["test", *test]:
                return condition([f"'{word}'" if word else "''" for word in test], variables)
            case ["eval", *rest]:
                return self._inner(" ".join(rest))
            case ["source" | ".", file, *rest]:
                before, variables.arguments = variables.arguments, rest or variables.arguments
                self._inner(beside(file, self.state) or "")
                variables.arguments = before if rest else variables.arguments
                return True
            case ["exit", *rest] if self.state.passes and rest != ["0"]:
                self.state.passed = True
                return False
            case ["exit" | "return" | "break" | "continue" as jump, *rest]:
                self.state.jump = jump
                self.state.levels = count(rest)
                self.state.returned = rest[:1] in ([], ["0"])
                return jump != "exit" and self.state.returned
            case ["false"]:
                return False
        if (status := builtin(words, variables, read)) is not None:
            return status
        if (place := next((at for at, word in enumerate(words) if word in ("-c", "-lc")), 0)) and _STARTS.search(
            script := next(iter(words[place + 1 :]), "")
        ):
            return self._shell(script, words[place + 3 :])
        self.state.commands.append(words)
        fails = self.nested and words[0] not in _QUIET and not any("main_" in word for word in words)
        self.unknown |= fails
        return not fails

    def _shell(self, script: str, arguments: list[str]) -> bool:
        """``bash -c script name arguments``."""
        state, before, jump = self.state, self.state.variables, self.state.jump
        state.variables = before.child(arguments)
        self._inner(script)
        state.variables, state.jump = before, jump
        return True

    def _function_call(self, words: list[str]) -> bool:
        state, variables = self.state, self.state.variables
        state.scopes.append({})
        before, variables.arguments = variables.arguments, words[1:]
        self._within(variables.functions[words[0]])
        for name, own in state.scopes.pop().items():
            variables.restore(name, own)
        variables.arguments = before
        status = state.jump != "return" or state.returned
        if state.jump == "return":
            state.jump = ""
        return status

    def _inner(self, script: str) -> bool:
        self.state.assigned |= assigned(script)
        self._within(tokens(mended(script)[0]))
        if self.state.jump == "return":
            self.state.jump = ""
        return True

    def _within(self, found: list[Token]) -> None:
        state = self.state
        state.depth += 1
        if self._again() and state.depth <= _DEEPEST:
            _Runner(state, found).block(())
        state.depth -= 1
