"""Plain values become a dataclass, or an error that names the key and what would be right."""

import dataclasses
from typing import Any, Literal

import pytest

from corerl import option
from corerl.config.typed import build, fill, type_words
from corerl.contracts.config import TrainConfig
from corerl.contracts.options import Part
from corerl.errors import ConfigError


@dataclasses.dataclass
class Inner:
    lr: float = option(0.1, "rate", gt=0)
    betas: list[float] = option(factory=lambda: [0.9, 0.999])


@dataclasses.dataclass
class Outer:
    path: str = option(help="folder")
    inner: Inner = option(factory=Inner)
    steps: int = 3
    limit: int | None = option(None, "most", ge=1)
    flag: bool = False
    mode: Literal["auto", "fp32", "bf16"] = "auto"
    files: list[str] = option(factory=list)
    extra: dict[str, Any] = option(factory=dict)
    part: Any = "naive"
    loss: Part = "vanilla"
    scorer: Part | None = None
    loggers: list[Part] = option(factory=lambda: ["console"])
    scorers: dict[str, Part] = option(factory=dict)
    layers: str | list[str] = "all"
    named: dict[str, Inner] = option(factory=dict)


def test_values_go_over_the_defaults() -> None:
    built = build(Outer, {"path": "x", "inner": {"lr": "1e-3"}, "limit": 4, "files": ["a"], "part": {"name": "b"}})
    assert built == Outer("x", Inner(lr=0.001), limit=4, files=["a"], part={"name": "b"})
    assert isinstance(built.inner, Inner)
    assert isinstance(built.inner.lr, float)


def test_a_key_that_selects_a_part_takes_a_name_or_a_mapping() -> None:
    built = build(
        Outer,
        {"path": "x", "loss": {"name": "gspo", "low": 1}, "loggers": ["a", {"name": "b"}], "scorers": {"s/t": "c"}},
    )
    assert type(built) is Outer
    assert (built.loss, built.scorer) == ({"name": "gspo", "low": 1}, None)
    assert (built.loggers, built.scorers) == (["a", {"name": "b"}], {"s/t": "c"})
    assert build(Outer, {"path": "x"}) == Outer("x")


def test_a_mapping_of_names_to_sections_has_their_defaults_types_and_ranges() -> None:
    built = build(Outer, {"path": "x", "named": {"a": {}, "b": {"lr": "0.5"}}})
    assert built.named == {"a": Inner(), "b": Inner(lr=0.5)} and isinstance(built.named["a"], Inner)
    for wrong, message in (
        ({"lr": 0}, "named.a.lr: must be greater than 0"),
        ({"lr": "fast"}, "named.a.lr: must be a number"),
        ({"rate": 1}, "named.a.rate: unknown key"),
        (3, "named.a: must be a mapping"),
    ):
        with pytest.raises(ConfigError) as error:
            build(Outer, {"path": "x", "named": {"a": wrong}})
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("rollout.n", 1_000_000),
        ("rollout.num_workers", 10_000),
        ("trainer.total_epochs", 2**32 - 1),
        ("trainer.seed", 2**32 - 1),
    ],
)
def test_an_integer_has_a_largest_value(key: str, most: int) -> None:
    section, name = key.split(".")
    given: dict[str, Any] = {"model": {"path": "x"}}
    built = build(TrainConfig, {**given, section: {name: most}})
    assert getattr(getattr(built, section), name) == most
    with pytest.raises(ConfigError, match=f"^{key}: must be at most {most}, not {10**12}$"):
        build(TrainConfig, {**given, section: {name: 10**12}})


def test_a_key_of_several_types_takes_each() -> None:
    assert build(Outer, {"path": "x", "layers": "some"}).layers == "some"
    assert build(Outer, {"path": "x", "layers": ["a", "b"]}).layers == ["a", "b"]


def test_interpolations_within_a_part_are_resolved() -> None:
    built = build(Outer, {"path": "x", "steps": 7, "loss": {"name": "${path}", "low": "${steps}"}, "scorer": "${loss}"})
    assert built.loss == built.scorer == {"name": "x", "low": 7}


def test_a_number_is_a_fine_name() -> None:
    assert build(Outer, {"path": 2024}).path == "2024"


def test_an_interpolation_refers_to_other_keys_and_to_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR", "red")
    built = build(Outer, {"path": "${oc.env:COLOUR}/${mode}", "limit": "${steps}", "inner": {"lr": "${limit}"}})
    assert (built.path, built.limit, built.inner.lr) == ("red/auto", 3, 3.0)


WRONG = {
    "an unknown key": ({"paht": "x"}, r"^paht: unknown key; did you mean path or part\?$"),
    "a known key in the wrong section": ({"lr": 1}, r"^lr: unknown key; did you mean inner.lr\?$"),
    "a key like no other": ({"inner": {"zzz": 1}}, r"^inner.zzz: unknown key; the keys of inner are lr, betas$"),
    "a section like no other": ({"zzz": 1}, r"^zzz: unknown key; the keys are path, inner, steps, "),
    "a key that is a number": ({3: 4}, r"^3: unknown key"),
    "a scalar for a section": ({"inner": 3}, r"^inner: must be a mapping, not 3; its keys are lr, betas$"),
    "nothing for a section": ({"inner": None}, r"^inner: must be a mapping, not null; its keys are lr, betas$"),
    "a list for a section": ({"inner": [1]}, r"^inner: must be a mapping, not \[1\]"),
    "a word for an integer": ({"steps": "foo"}, r"^steps: must be an integer, not 'foo'$"),
    "a fraction for an integer": ({"steps": 1.5}, r"^steps: must be an integer, not 1.5$"),
    "a truth value for an integer": ({"steps": True}, r"^steps: must be an integer, not true$"),
    "null for an integer": ({"steps": None}, r"^steps: must be an integer, not null$"),
    "a word for an optional integer": ({"limit": "foo"}, r"^limit: must be an integer, or null, not 'foo'$"),
    "a word for a number": ({"inner": {"lr": "fast"}}, r"^inner.lr: must be a number, not 'fast'$"),
    "a truth value for a number": ({"inner": {"lr": True}}, r"^inner.lr: must be a number, not true$"),
    "a word for a truth value": ({"flag": "maybe"}, r"^flag: must be true or false, not 'maybe'$"),
    "a truth value for a string": ({"path": True}, r"^path: must be a string, not true$"),
    "a list for a string": ({"path": ["x"]}, r"^path: must be a string, not \['x'\]$"),
    "a string for a list": ({"files": "a"}, r"^files: must be a list of strings, not 'a'; write \[a\]$"),
    "a mapping for a list": ({"files": {"a": 1}}, r"^files: must be a list of strings, not \{'a': 1\}$"),
    "a mapping in a list": ({"files": [{"a": 1}]}, r"^files\[0\]: must be a string, not \{'a': 1\}$"),
    "a word in a list of numbers": ({"inner": {"betas": [0, "b"]}}, r"^inner.betas\[1\]: must be a number, not 'b'$"),
    "a scalar for a mapping": ({"extra": 3}, r"^extra: must be a mapping, not 3$"),
    "a choice that there is not": ({"mode": "bf61"}, r"^mode: must be one of auto, fp32, bf16, not 'bf61' \(did "),
    "a value out of range": ({"inner": {"lr": 0}}, r"^inner.lr: must be greater than 0, not 0.0$"),
    "not a number": ({"inner": {"lr": float("nan")}}, r"^inner.lr: must be greater than 0, not nan$"),
    "an interpolation of nothing": ({"part": "${nope}"}, r"^part: Interpolation key 'nope' not found$"),
    "an interpolation of the wrong type": ({"steps": "${mode}"}, r"^steps: "),
    "a variable that is not set": ({"part": "${oc.env:NOT_SET}"}, r"^part: Environment variable 'NOT_SET' not found$"),
    "half an interpolation": ({"part": "${bad"}, r"an interpolation is written \$\{section.key\} or"),
    "a number for a part": ({"loss": 3}, r"^loss: must be a name, or a mapping with 'name' and options, not 3$"),
    "a truth value for a part": ({"loss": True}, r"^loss: must be a name, or a mapping .* options, not true$"),
    "a list for a part": ({"loss": ["a"]}, r"^loss: must be a name, or a mapping .* options, not \['a'\]$"),
    "null for a part": ({"loss": None}, r"^loss: must be a name, or a mapping with 'name' and options, not null$"),
    "a number for an optional part": ({"scorer": 3}, r"^scorer: must be a name, .* options, or null, not 3$"),
    "a number among parts": ({"loggers": ["a", 3]}, r"^loggers\[1\]: must be a name, or a mapping .* not 3$"),
    "one part for a list": ({"loggers": "a"}, r"^loggers: must be a list, not 'a'; write \[a\]$"),
    "null in a mapping of parts": ({"scorers": {"s": None}}, r"^scorers.s: must be a name, .* not null$"),
    "a mapping for a string or a list": ({"layers": {"a": 1}}, r"^layers: must be a string, or a list of strings, not"),
    "a mapping in a list of strings": ({"layers": [{}]}, r"^layers\[0\]: must be a string, not \{\}$"),
    "a long value": ({"steps": "x" * 500}, r"^steps: must be an integer, not 'x{56}\.\.\.$"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_one_line_with_its_key(values: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(Outer, {"path": "x", **values})
    assert "\n" not in str(caught.value)


def test_a_required_value_that_is_missing_is_named_with_its_type() -> None:
    with pytest.raises(ConfigError, match=r"^path: must be given: a string$"):
        build(Outer, {})
    with pytest.raises(ConfigError, match=r"^model.path: must be given: a string$"):
        build(TrainConfig, {})


def test_the_path_is_put_before_the_key() -> None:
    with pytest.raises(ConfigError, match=r"^reward.scorer.inner.lr: must be a number, not 'x'$") as caught:
        build(Outer, {"path": "x", "inner": {"lr": "x"}}, "reward.scorer")
    assert caught.value.key == "reward.scorer.inner.lr"
    with pytest.raises(ConfigError, match=r"^reward.scorer.lr: unknown key; did you mean reward.scorer.inner.lr\?$"):
        build(Outer, {"path": "x", "lr": 1}, "reward.scorer")


@dataclasses.dataclass
class Ordered:
    low: int = 1
    high: int = 2

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")


def test_a_rule_in_post_init_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"^actor.policy_loss: low=5 is above high=2$"):
        build(Ordered, {"low": 5}, "actor.policy_loss")


def test_fill_keeps_a_marker_where_a_required_value_is_missing() -> None:
    filled = fill(Outer, {"steps": 7})
    assert filled["path"] == "???"
    assert (filled["steps"], filled["inner"]) == (7, {"lr": 0.1, "betas": [0.9, 0.999]})


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "an integer"),
        (float | None, "a number, or null"),
        (list[str], "a list of strings"),
        (list[Any], "a list"),
        (dict[str, int], "a mapping"),
        (Literal["a", "b"] | None, "one of a, b, or null"),
        (Any, "any value"),
        (Part, "a name, or a mapping with 'name' and options"),
        (Part | None, "a name, or a mapping with 'name' and options, or null"),
        (str | list[str], "a string, or a list of strings"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert type_words(hint) == words
