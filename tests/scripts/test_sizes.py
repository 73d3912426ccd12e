"""examples/recipes/sizes: each config passes the check for its GPUs, and its comment has the estimated memory."""

import pytest

from scripts.pages import sizes


@pytest.fixture(scope="module")
def answers():
    return {config: sizes.checked(config) for config in sizes.CONFIGS}


def test_each_config_fits_its_gpus(answers):
    for config, answer in answers.items():
        assert answer["ok"] and not [each for each in answer["findings"] if each["severity"] != "note"], config.name
        assert answer["plan"].endswith("on planned GPUs"), config.name


def test_every_size_of_the_table_is_there():
    found = {sizes.named(config)[0] for config in sizes.CONFIGS}
    assert found == {"0.5b", "1.5b", "3b", "7b", "8b", "14b", "30b-a3b", "32b"}
    assert {sizes.named(config)[1] for config in sizes.CONFIGS} == {1, 2, 4, 8}


def test_comments_and_page_have_the_estimates_of_today(answers):
    for config, answer in answers.items():
        text = config.read_text()
        assert text == sizes.render_config(text, answer), "run python -m scripts.pages.sizes"
        assert f"corerl train examples/recipes/sizes/{config.name}\n" in text
    page = sizes.PAGE.read_text()
    assert page == sizes.render_page(page, answers), "run python -m scripts.pages.sizes"
