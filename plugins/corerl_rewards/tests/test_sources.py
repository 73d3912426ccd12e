"""Which data source is scored by what, without a word in the config."""

import pytest

from corerl.plugins import load_plugins
from corerl.registry.scorers import keys_for, table_of_sources


@pytest.mark.parametrize(
    ("source", "scorer"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("lighteval/MATH", "math"),
        ("DigitalLearningGmbH/MATH-lighteval", "math"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("HuggingFaceH4/aime_2024", "math"),
        ("math_dapo", "math_dapo"),
        ("math_dapo_reasoning", "math_dapo"),
        ("math", "math_dapo"),
        ("aime24", "math_dapo"),
        ("aime_2025", "math_dapo"),
        ("countdown", "countdown"),
        ("numina_olympiads", "math_verify"),
        ("numina_cn_k12", "math_verify"),
        ("AI-MO/NuminaMath-TIR", "math_verify"),
        ("searchR1_hotpotqa", "exact_match"),
        ("Idavidrein/gpqa", "multiple_choice"),
        ("corerl/arithmetic", "arithmetic"),
        ("hiyouga/geometry3k", "geometry3k"),
    ],
)
def test_published_sources_have_their_scorer(source: str, scorer: str) -> None:
    table = table_of_sources(load_plugins().registries.scorers)
    assert [entry.name for key in keys_for(source, table) for entry in table[key]] == [scorer]


@pytest.mark.parametrize(
    "source",
    [
        *("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500"),
        *("math_dapo", "math", "math_dapo_reasoning", "aime_2024", "hiyouga/geometry3k"),
        *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12"),
        *("numina_olympiads", "searchR1_nq", "searchR1_triviaqa"),
        *("searchR1_popqa", "searchR1_hotpotqa", "searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"),
    ],
)
def test_every_source_that_verl_scores_is_scored_here_by_one_scorer(source: str) -> None:
    table = table_of_sources(load_plugins().registries.scorers)
    assert len([entry for key in keys_for(source, table) for entry in table[key]]) == 1
