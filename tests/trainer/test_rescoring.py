"""Responses on disk: scored as training would, and what is printed of them."""

import pytest

from corerl.contracts.reward_managers import RewardResult
from corerl.data.report import Location
from corerl.errors import DataError, RunError
from corerl.registry import Entry, Owner, Selected
from corerl_tools.evaluation.files import Response
from corerl_tools.score.rescoring import error_lines, rescore, score_table, scorers_of


def response(text, source="acme/sums", **row):
    return Response(Location("out.parquet", 0), row, text, text, source, "42")


def test_every_response_is_scored_by_its_sources_scorer_and_the_manager_is_closed(made_up):
    made = made_up()
    made.config.data.max_response_length = 77
    manager = made.parts.reward_manager.load()
    responses = [response("four"), response("sixsix", max_response_length=9)]
    scorers = scorers_of(responses, made.config, made.plugins)
    assert {source: scorer.entry.name for source, scorer in scorers.items()} == {"acme/sums": "one"}
    before = manager.closed
    results = rescore(responses, scorers, made.config, made.plugins)
    assert results == [RewardResult(4.0, {"limit": 77}), RewardResult(6.0, {"limit": 9})]
    assert manager.closed == before + 1


def test_a_source_that_nobody_scores_is_an_error(made_up):
    made = made_up()
    with pytest.raises(DataError, match="data_source 'unheard/of' has no scorer"):
        scorers_of([response("x", "unheard/of")], made.config, made.plugins)


def test_the_score_of_an_episode_is_the_scorers_and_the_environments(made_up):
    made = made_up()
    responses = [
        response("four", environment_reward=0.5),
        response("four", environment_reward=0.0),
        response("four", environment_reward=0.0, environment_error="the sandbox is gone"),
        response("four", environment_reward=None),
    ]
    results = rescore(responses, scorers_of(responses, made.config, made.plugins), made.config, made.plugins)
    assert [result.score for result in results] == [4.5, 4.0, None, 4.0]
    assert results[0].components == {"limit": 512, "scorer": 4.0, "environment": 0.5}
    assert results[2].error == "the sandbox is gone"
    assert "environment" not in results[3].components


def test_a_manager_that_gives_too_few_results_is_an_error(made_up, monkeypatch):
    made = made_up()
    manager = made.parts.reward_manager.load()
    monkeypatch.setattr(manager, "score", lambda self, requests: [])
    with pytest.raises(RunError, match="0 results for 1 responses"):
        rescore([response("x")], scorers_of([response("x")], made.config, made.plugins), made.config, made.plugins)


def scorer(name):
    return Selected(Entry("scorer", name, lambda *_: 0.0, Owner("acme", "1")))


def test_the_table_has_a_row_for_each_source_with_means_over_what_was_scored():
    responses = [response("a", "s"), response("b", "s"), response("c", "s"), response("d", "t")]
    results = [
        RewardResult(1.0, {"format": 0.5}),
        RewardResult(0.5, {"format": 0.25, "tone": 1.0}),
        RewardResult(None, error="late"),
        RewardResult(None, error="late"),
    ]
    assert score_table(responses, results, {"s": scorer("exact"), "t": scorer("judge")}) == [
        ("data source", "scorer", "responses", "scored", "mean score", "components"),
        ("s", "exact", "3", "2", "0.7500", "format 0.3750, tone 1.0000"),
        ("t", "judge", "1", "0", "–", ""),
    ]


def failed(**counts):
    return [RewardResult(None, error=reason) for reason, count in counts.items() for _ in range(count)]


def test_the_most_frequent_reasons_come_first_and_the_rest_is_counted():
    assert error_lines([RewardResult(1.0)]) == []
    assert error_lines([*failed(a=1, b=3, c=2), RewardResult(1.0)]) == ["3: b", "2: c", "1: a"]
    assert error_lines(failed(a=1, b=3, c=2), most=3) == ["3: b", "2: c", "1: a"]
    assert error_lines(failed(a=1, b=3, c=2, d=1), most=2) == ["3: b", "2: c", "2: 2 further reasons"]
    assert len(error_lines(failed(a=1, b=1, c=1, d=1, e=1, f=1))) == 6
