"""The words and operators of a shell script, with quotes kept."""

import re
from typing import NamedTuple

from corerl.errors import ConfigError

OPERATORS = ("&&", "||", ";;", "|&", "&", "|", ";", "(", ")", "\n")
_REDIRECTION = re.compile(r"(\d*|&)(>>|>&|>\||>|<&|<<<|<<-|<<|<)(&?\d+|-)?")
_BROKEN = re.compile(r"\\[ \t]+(#[^\n]*)?$")
_LAST = re.compile(r"(?<!\\)((?:\\\\)*)\\\Z")
"""a single backslash at the end of a script"""
_ARGUMENT = re.compile(r"""\s*(["']?\$[{@\w]|["']?[+~]*[\w.@/-]+=|--?\w)""")
_ESCAPED = re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL)
_DOCUMENT = re.compile(r"<<-?[ \t]*([\"'\\]?)([A-Za-z_]\w*)\1")
_PAIRS = {"(": ")", "{": "}"}
INPUTS = ("<<=", '<<"', "<<<", "<<(")
"""a here-document as it is; one with expansions; a raw word; the output of commands"""


class Token(NamedTuple):
    """A raw word, an operator, or a redirection of the input or the output.

    Attributes:
        text: with quotes and expansions as written; ``((…))`` is one word. A redirection begins with one of INPUTS,
            or with ``>`` before the raw name of the file; other redirections are left out.
        operator: whether it is one of OPERATORS.
    """

    text: str
    operator: bool

    @property
    def redirects(self) -> bool:
        """Whether it is a redirection."""
        return not self.operator and self.text.startswith((">", *INPUTS))


def mended(script: str) -> tuple[str, bool]:
    """The script with continuations over comments and blank lines, which bash would end the command at.

    A backslash at the end of the script continues nothing, as in bash.

    Returns:
        The script, and whether a line was changed.
    """
    lines: list[str] = []
    changed, source = False, script.split("\n")
    for number, line in enumerate(source):
        if lines and lines[-1].endswith("\\") and (not line.strip() or line.lstrip().startswith("#")):
            following = next((each for each in source[number:] if each.strip() and each.lstrip()[0] != "#"), "")
            if _ARGUMENT.match(following):
                changed = True
                continue
        whole = _BROKEN.sub(lambda match: "\\", line)
        changed |= whole != line and bool(line[line.rindex("\\") + 1 :].strip())
        lines.append(whole)
    return _LAST.sub(r"\1", "\n".join(lines)), changed


def tokens(script: str) -> list[Token]:
    """Words, operators and redirections; comments are left out.

    Raises:
        ConfigError: a quote or a bracket has no end.
    """
    return _Lexer(script).run()


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.found: list[Token] = []
        self.documents: list[tuple[int, str, bool]] = []  # place in found, delimiter, whether tabs are left out

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            character = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif character in " \t":
                self.at += 1
            elif character == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif not self._redirection():
                self._operator_or_word()
        self.found.append(Token("\n", True))
        return self.found

    def _redirection(self) -> bool:
        match = _REDIRECTION.match(self.text, self.at)
        if not match or self.text.startswith(("<(", ">("), self.at):
            return False
        self.at = match.end()
        if match[3]:
            return True
        while self.text[self.at : self.at + 1] in (" ", "\t") and self.at < len(self.text):
            self.at += 1
        target = self._word()
        self._redirected(match[2], match[1], target)
        return True

    def _redirected(self, sign: str, descriptor: str, target: str) -> None:
        if sign in ("<<", "<<-"):
            delimiter = re.sub(r"[\"'\\]", "", target)
            self.documents.append((len(self.found), delimiter, sign == "<<-"))
            self.found.append(Token(INPUTS[delimiter == target], False))
        elif sign == "<<<":
            self.found.append(Token(f"<<<{target}", False))
        elif sign == "<" and target.startswith("<("):
            self.found.append(Token(f"<<{target[1:]}", False))
        elif sign in (">", ">|") and descriptor in ("", "1"):
            self.found.append(Token(f">{target}", False))

    def _operator_or_word(self) -> None:
        if self.text.startswith("((", self.at):
            end = end_of(self.text, self.at)
            if self.text[end - 2] == ")":
                self.found.append(Token(self.text[self.at : end].replace("\\\n", ""), False))
                self.at = end
                return
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                self.found.append(Token(operator, True))
                if operator == "\n":
                    self._read_documents()
                return
        self.found.append(Token(self._word(), False))

    def _read_documents(self) -> None:
        for place, delimiter, tabs in self.documents:
            match = re.compile(rf"^\t*{re.escape(delimiter)}$", re.MULTILINE).search(self.text, self.at)
            content = self.text[self.at : match.start() if match else len(self.text)]
            content = re.sub(r"^\t+", "", content, flags=re.MULTILINE) if tabs else content
            self.found[place] = Token(self.found[place].text + content, False)
            self.at = min(match.end() + 1, len(self.text)) if match else len(self.text)
        self.documents = []

    def _word(self) -> str:
        start = self.at
        if self.text.startswith(("<(", ">("), start):
            self.at = end_of(self.text, start + 1)
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "(" and self.text[start : self.at].endswith("="):  # an array
                self.at = end_of(self.text, self.at)
            elif character in " \t\n;&|()<>":
                break
            elif character == "\\":
                self.at += 2
            elif self.text.startswith("$'", self.at):
                self.at = end_of_quote(self.text, self.at + 1)
            elif character in "\"'`" or (character == "$" and self.text[self.at + 1 : self.at + 2] in ("(", "{")):
                self.at = end_of(self.text, self.at + (character == "$"))
            else:
                self.at += 1
        if self.at == start:  # a lone < or >
            self.at += 1
        return self.text[start : self.at].replace("\\\n", "")


def end_of_quote(text: str, start: int) -> int:
    """The place after the quote of ``$'…'``, in which a backslash escapes, or of ``$"…"``."""
    match = _ESCAPED.match(text, start) if text[start] == "'" else None
    return match.end() if match else end_of(text, start)


def end_of(text: str, start: int) -> int:
    """The place after the quote or bracket that begins at ``start``.

    Raises:
        ConfigError: it has no end.
    """
    opening = text[start]
    closing = _PAIRS.get(opening, opening)
    at, depth = start + 1, 1
    delimiters: list[str] = []
    while at < len(text):
        character = text[at]
        if opening == "(" and character == "<" and (match := _DOCUMENT.match(text, at)):
            delimiters.append(match[2])
            at = match.end()
            continue
        if character == "\n" and delimiters:
            last = re.compile(rf"^\t*{delimiters.pop(0)}$", re.MULTILINE).search(text, at + 1)
            at = last.end() if last else at + 1
            continue
        if opening in _PAIRS and text.startswith("$'", at):
            at = end_of_quote(text, at + 1)
            continue
        if character == "\\" and opening != "'":
            at += 2
            continue
        if character == closing:
            depth -= 1
            if not depth:
                return at + 1
        elif opening in _PAIRS and character == opening:
            depth += 1
        elif character == "#" and opening == "(" and text[at - 1] in " \t\n":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        elif opening != "'" and character == "$" and text[at + 1 : at + 2] in ("(", "{"):
            at = end_of(text, at + 1)
            continue
        elif opening in _PAIRS and character in "\"'`":
            at = end_of(text, at)
            continue
        at += 1
    line = text.count("\n", 0, start) + 1
    raise ConfigError("", f"the script's {opening} of line {line} has no end")
