"""Kinds of parts that plugins add, and the API that a plugin was written for."""

import pytest
from click.testing import CliRunner

from corerl.errors import UnknownNameError
from corerl.plugins import Plugins
from corerl_testing.checks import checks_of, outcome
from corerl_tools.plugin_lists import list_, show, trace

KIND = """
from dataclasses import dataclass
from typing import Protocol
from corerl import hookimpl
from corerl.contracts.kinds import Kind, fact

class Sampler(Protocol):
    "Rows of an epoch."
    def __call__(self, size: int) -> list[int]: ...

class Estimate(Protocol):
    def __call__(self, size: int) -> int: ...

@dataclass(frozen=True)
class SamplerFacts:
    columns: tuple[str, ...] = fact((), "reads these columns")
    estimate: Estimate | str | None = fact(None, "is called before data are read", contract=Estimate)

@hookimpl
def add_kinds(add):
    needs = {"lengths": "measures every prompt first"}
    add(Kind("samplers", "sampler", Sampler, "data.sampler", needs, SamplerFacts))
"""
SAMPLER = """
from dataclasses import dataclass
from corerl import hookimpl, option

@dataclass
class Options:
    step: int = option(1, "rows from one to the next", ge=1)

def half(size):
    return size // 2

def every(size, *, options):
    return list(range(0, size, options.step))

@hookimpl
def register_samplers(register):
    facts = {"columns": ["prompt"], "estimate": half}
    register("every", every, summary="every step-th row", options=Options, needs={"lengths"}, **facts)
"""


def test_a_plugin_registers_parts_of_a_kind_of_another_that_is_loaded_later(make_distribution):
    make_distribution("acme", "1.0", SAMPLER)
    make_distribution("zeta", "1.0", KIND)
    plugins = Plugins(disable=())
    records = {record.name: record for record in plugins.records}
    assert (records["acme"].status, records["zeta"].status) == ("ok", "ok"), records["acme"].error
    selected = plugins.registries.samplers.select({"name": "every", "step": 2})
    assert selected.load()(5) == [0, 2, 4]
    with pytest.raises(UnknownNameError, match=r"unknown sampler 'evry' \(did you mean 'every'"):
        plugins.registries.samplers.get("evry")


def test_parts_declare_the_needs_and_facts_of_their_kind(make_distribution):
    make_distribution("acme", "1.0", SAMPLER)
    make_distribution("zeta", "1.0", KIND)
    entry = Plugins().registries.samplers.get("every")
    assert (entry.needs, entry.facts.columns) == ({"lengths"}, ("prompt",))
    assert entry.load_fact("estimate")(6) == 3


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (('{"lengths"}', '{"length"}'), "unknown need 'length' (did you mean 'lengths'?); known: lengths"),
        (('"columns"', '"colums"'), "unknown fact 'colums' (did you mean 'columns'?)"),
        (('["prompt"]', '"prompt"'), "the sampler 'every': columns must be a tuple, not 'prompt'"),
    ],
)
def test_another_need_or_fact_breaks_the_plugin_of_the_part(make_distribution, change, error):
    make_distribution("acme", "1.0", SAMPLER.replace(*change))
    make_distribution("zeta", "1.0", KIND)
    record = next(record for record in Plugins().records if record.name == "acme")
    assert record.status == "broken" and error in record.error


def test_without_the_plugin_of_its_kind_a_part_is_refused(make_distribution):
    make_distribution("acme", "1.0", SAMPLER)
    record = next(record for record in Plugins().records if record.name == "acme")
    assert record.status == "broken" and record.error.startswith("there is no hook 'register_samplers'")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (('"samplers", "sampler"', '"scorers", "sampler"'), "the kind 'sampler' needs another name"),
        (('"samplers", "sampler"', '"samp lers", "sampler"'), "the kind 'sampler' needs another name"),
        (('"samplers", "sampler"', '"add", "sampler"'), "the kind 'sampler' needs another name"),
        (('"samplers", "sampler"', '"samplers", "scorer"'), "there is a kind 'scorer' already"),
    ],
)
def test_a_kind_that_clashes_breaks_its_plugin_alone(make_distribution, change, error):
    make_distribution("zeta", "1.0", KIND.replace(*change))
    plugins = Plugins()
    record = next(record for record in plugins.records if record.name == "zeta")
    assert record.status == "broken" and error in record.error
    assert plugins.registries.commands.get("train")


def test_a_kind_and_its_parts_are_listed_and_checked(make_distribution):
    make_distribution("acme", "1.0", SAMPLER)
    make_distribution("zeta", "1.0", KIND)
    listed = CliRunner().invoke(list_).output
    assert "sampler (data.sampler)" in listed and "every-step" not in listed and "every step-th row" in listed
    shown = CliRunner().invoke(show, ["samplers/every"]).output
    assert "rows from one to the next" in shown
    assert [line.split() for line in shown.splitlines() if line.split()[0] in ("needs", "columns", "estimate")] == [
        ["needs", "lengths"],
        ["columns", "prompt"],
        ["estimate", "half"],
    ]


@pytest.mark.parametrize(("arguments", "failed"), [("size", []), ("size, other", ["contract"])])
def test_code_of_a_fact_is_checked_against_its_contract(make_distribution, arguments, failed):
    make_distribution("acme", "1.0", SAMPLER.replace("def half(size)", f"def half({arguments})"))
    make_distribution("zeta", "1.0", KIND)
    samplers = Plugins().registries.samplers
    results = [outcome(check) for check in checks_of(samplers, samplers.get("every"), light=True)]
    assert [result.check for result in results if result.status == "failed"] == failed


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ('">=1,<2"', ""),
        ('">=2"', "it was written for API >=2 of CoreRL"),
        ('"<1"', "it was written for API <1 of CoreRL"),
        ('"one"', "its corerl_api must be a range"),
        ("1", "its corerl_api must be a range"),
    ],
)
def test_a_plugin_for_another_api_is_told_what_to_do(make_distribution, declared, error):
    make_distribution("zeta", "1.0", f"corerl_api = {declared}\n{KIND}")
    record = next(record for record in Plugins().records if record.name == "zeta")
    assert (record.status == "broken") == bool(error) and error in record.error


def test_trace_shows_hooks_and_times(make_distribution):
    make_distribution("zeta", "1.0", KIND)
    make_distribution("acme", "1.0", f"import time; time.sleep(0.05)\n{SAMPLER}")
    lines = [line.split() for line in CliRunner().invoke(trace).output.splitlines()]
    row = next(line for line in lines if "register_samplers" in line)
    assert row[0] == "acme" and float(row[1]) >= 50 and row[-1] == "every"
    assert any(line[0] == "zeta" and "add_kinds" in line for line in lines if line)
