"""Mutations of Python source: one operator, constant, argument or line changed.

A mutation replaces a stretch of the text; its diff shows nothing else. The kinds::

    comparison   < to <=, == to !=, is to is not, in to not in, and back
    arithmetic   + to -, * to /, // to /, % to *, ** to *, | to &, and back; += to -= likewise
    boolean      and to or, and back; not x to x; -x to x
    constant     a number n to n + 1, True to False, a text to another
    return       return x to return None
    argument     a keyword argument left out
    condition    if x to if True and to if False, also in expressions and comprehensions
    statement    a call without a use of its value, or an assignment to an attribute or an element, left out

Not mutated: annotations, decorators, docstrings, assert, raise, printed texts, code for type checkers.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}

ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.MatMult: ("@", "*"),
}

TALKERS = ("say", "print", "option", "TypeVar", "ParamSpec", "RunError", "ConfigError", "SaveError", "DataError")
"""calls with texts for readers or for type checkers, which stay"""


@dataclass(frozen=True)
class Mutation:
    """A stretch of a text, by byte offsets, and its replacement."""

    kind: str
    start: int
    end: int
    text: str

    def apply(self, source: bytes) -> bytes:
        """The source with the mutation."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All mutations of a module that compile, in the order of their places."""
    tree = ast.parse(source)
    found = sorted(_Finder(source, tree).of(tree), key=lambda each: (each.start, each.end, each.kind, each.text))
    return [each for each in dict.fromkeys(found) if each.apply(source) != source and _is_python(each.apply(source))]


def _is_python(source: bytes) -> bool:
    try:
        compile(source, "<mutant>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    """Walks a syntax tree and maps its nodes to byte offsets."""

    def __init__(self, source: bytes, tree: ast.Module) -> None:
        self.source = source
        talking = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and _name(each) in TALKERS]
        self._texts = {each for call in talking for each in ast.walk(call) if _is_text(each)}
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._lines = starts

    def of(self, node: ast.AST) -> Iterator[Mutation]:
        """The mutations of a node and of all nodes below it."""
        if self._is_left_alone(node):
            return
        yield from self._here(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "format_spec"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_docstring(child):
                    yield from self.of(child)

    def _is_left_alone(self, node: ast.AST) -> bool:
        if isinstance(node, ast.If):
            return "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.Assign):
            return "__all__" in ast.unparse(node.targets[0])
        if isinstance(node, ast.Subscript):
            return ast.unparse(node.value) == "Literal"
        return node in self._texts or isinstance(
            node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom
        )

    def _here(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.Compare():
                operands = [node.left, *node.comparators]
                for left, right, operator in zip(operands, operands[1:], node.ops, strict=False):
                    was, now = COMPARISONS[type(operator)]
                    yield from self._between("comparison", left, right, rf"(?<![<>=!\w]){was}(?![<>=\w])", now)
            case ast.BinOp():
                was, now = ARITHMETIC[type(node.op)]
                yield from self._between("arithmetic", node.left, node.right, re.escape(was), now)
            case ast.AugAssign():
                was, now = ARITHMETIC[type(node.op)]
                yield from self._between("arithmetic", node.target, node.value, re.escape(f"{was}="), f"{now}=")
            case ast.BoolOp():
                was, now = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self._between("boolean", left, right, rf"\b{was}\b", now)
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                yield self._replace("boolean", node, f"({self._text(node.operand)})")
            case ast.Constant():
                yield from self._constant(node)
            case ast.Return() if node.value is not None and not _is_none(node.value):
                yield self._replace("return", node.value, "None")
            case ast.Call():
                yield from self._arguments(node)
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._replace("statement", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._replace("statement", node, "pass")
        yield from self._conditions(node)

    def _conditions(self, node: ast.AST) -> Iterator[Mutation]:
        match node:
            case ast.If() | ast.IfExp():
                tests = [node.test]
            case ast.comprehension():
                tests = node.ifs
            case _:
                return
        for test in tests:
            yield self._replace("condition", test, "True")
            yield self._replace("condition", test, "False")

    def _constant(self, node: ast.Constant) -> Iterator[Mutation]:
        value = node.value
        if isinstance(value, bool):
            yield self._replace("constant", node, str(not value))
        elif isinstance(value, int | float):
            yield self._replace("constant", node, repr(value + 1))
        elif isinstance(value, str) and value:
            yield self._replace("constant", node, repr(f"{value}_"))

    def _arguments(self, node: ast.Call) -> Iterator[Mutation]:
        given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        for dropped in node.keywords:
            kept = ", ".join(self._text(each) for each in given if each is not dropped)
            yield self._replace("argument", node, f"{self._text(node.func)}({kept})")

    def _between(self, kind: str, left: ast.expr, right: ast.expr, was: str, now: str) -> Iterator[Mutation]:
        """Change the operator between two operands; brackets and comments may stand around it."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        found = re.search(was.encode(), between)
        if found:
            yield Mutation(kind, start + found.start(), start + found.end(), now)

    def _replace(self, kind: str, node: ast.expr | ast.stmt, text: str) -> Mutation:
        return Mutation(kind, *self._span(node), text)

    def _text(self, node: ast.expr | ast.keyword) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        first, last = self._lines[node.lineno - 1], self._lines[node.end_lineno - 1]
        return first + node.col_offset, last + node.end_col_offset


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
