"""Which scorer scores which data source."""

from types import SimpleNamespace

import pytest

from corerl.contracts.scorers import Scorer
from corerl.errors import ConfigError, DataError, NameClashError, PluginError
from corerl.registry import Entry, Owner, Registries, Selected
from corerl.registry.scorers import load_scorer
from corerl.rollout.scoring import select_scorers


def registries(**sources):
    made = Registries()
    for name, patterns in sources.items():
        made.scorers.add(made.scorers.entry(name, lambda *_: 0.0, Owner(f"acme-{name}", "1"), data_sources=patterns))
    return made


def chosen(data, made, scorer=None, scorers=None):
    select = made.scorers.select
    manager = SimpleNamespace(entry=SimpleNamespace(facts=SimpleNamespace(scores_alone=False)))
    parts = SimpleNamespace(
        reward_manager=manager,
        scorer=scorer and select(scorer),
        scorers={key: select(value) for key, value in (scorers or {}).items()},
    )
    return {source: selected.entry.name for source, selected in select_scorers(data, parts, made).items()}


def test_a_source_selects_the_scorer_that_is_registered_for_it():
    made = registries(sums=["acme/sums"], aime=["aime*"])
    assert chosen(["acme/sums", "aime24", "aime"], made) == {"acme/sums": "sums", "aime24": "aime", "aime": "aime"}


def test_a_name_comes_before_a_pattern():
    made = registries(old=["aime24"], aime=["aime*"])
    assert chosen(["aime24", "aime25"], made) == {"aime24": "old", "aime25": "aime"}


def test_the_config_comes_before_what_is_registered_source_by_source():
    made = registries(sums=["acme/sums", "acme/more"], mine=[])
    assert chosen(["acme/sums", "acme/more"], made, scorers={"acme/sums": "mine"}) == {
        "acme/sums": "mine",
        "acme/more": "sums",
    }


def test_scorer_is_for_all_rows_that_scorers_does_not_name():
    made = registries(sums=["acme/sums"], mine=[], other=[])
    given = chosen(["acme/sums", "aime24", "x"], made, scorer="mine", scorers={"aime*": "other"})
    assert given == {"acme/sums": "mine", "aime24": "other", "x": "mine"}


def test_a_source_that_nobody_scores_is_an_error_with_the_nearest_and_the_remedy():
    with pytest.raises(DataError, match=r"'acme/sum' has no scorer \(did you mean 'acme/sums'\?\): .*reward.scorers="):
        chosen(["acme/sum"], registries(sums=["acme/sums"]))


def test_two_scorers_for_one_source_are_an_error_that_names_both():
    made = registries(one=["aime*"], two=["aime*", "x"])
    with pytest.raises(NameClashError, match=r"'aime24' is scored by 'one' of acme-one 1 and 'two' of acme-two 1"):
        chosen(["aime24"], made)
    assert chosen(["aime24"], made, scorers={"aime24": "two"}) == {"aime24": "two"}


def test_two_patterns_of_the_config_that_fit_are_an_error_unless_they_agree():
    made = registries(one=[], two=[])
    with pytest.raises(ConfigError, match=r"reward.scorers: data_source 'aime24' matches 'a\*' and 'aime\*'"):
        chosen(["aime24"], made, scorers={"a*": "one", "aime*": "two"})
    assert chosen(["aime24"], made, scorers={"a*": "one", "aime*": "one"}) == {"aime24": "one"}
    assert chosen(["aime24"], made, scorers={"a*": "one", "aime*": "two", "aime24": "two"}) == {"aime24": "two"}


def test_a_key_that_is_no_source_of_the_data_is_an_error_with_the_nearest():
    made = registries(sums=["acme/sums"], mine=[])
    with pytest.raises(ConfigError, match=r"reward.scorers.acme/sum: .*did you mean 'acme/sums'"):
        chosen(["acme/sums"], made, scorers={"acme/sum": "mine"})


def test_a_key_that_is_known_but_not_in_this_data_is_none():
    made = registries(sums=["acme/sums"], aime=["aime*"], mine=[])
    assert chosen(["acme/sums"], made, scorers={"aime24": "mine"}) == {"acme/sums": "sums"}


def selected(function):
    return Selected(Entry("scorer", "mine", function, Owner("acme", "1"), "x"), contract=Scorer)


async def asynchronous(data_source, response, ground_truth, extra_info): ...


@pytest.mark.parametrize(
    ("function", "taken"),
    [
        (lambda response, truth: 0.0, "response, truth"),
        (
            lambda data_source, solution_str, ground_truth, extra_info=None: 0.0,
            "data_source, solution_str, ground_truth, extra_info",
        ),
        (asynchronous, "data_source, response, ground_truth, extra_info"),
    ],
)
def test_a_scorer_with_other_arguments_is_refused_before_it_compares_the_wrong_texts(function, taken):
    with pytest.raises(PluginError) as caught:
        load_scorer(selected(function), 30.0)
    assert str(caught.value).startswith(
        f"scorer 'mine' takes ({taken}), and is called with (response, ground_truth, data_source, extra_info)"
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda response, ground_truth, data_source, extra_info: 1.0,
        lambda text, truth, *_: 1.0,
        lambda response, ground_truth, data_source, extra_info, strict=True: 1.0,
        lambda *arguments: 1.0,
    ],
)
def test_a_scorer_may_call_its_arguments_as_it_likes(function):
    assert load_scorer(selected(function), 30.0)("4", "4", "x", {}) == 1.0
