"""The page in a real browser."""

import pytest

from corerl_testing.browser import find_chromium, open_browser
from corerl_tools.report.page import write_page
from corerl_tools.report.runs import read_records

pytestmark = [
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]

READY = "document.documentElement.dataset.ready"


@pytest.fixture(scope="module")
def browser(runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, runs, [read_records(folder) for folder in runs], 100)
    with open_browser() as page:
        page.size(1200, 900)
        page.path = path
        yield page


@pytest.fixture
def page(browser):
    """The page, opened anew; at the end nothing was said on the console, and no text of a run was run."""
    browser.open(browser.path)
    browser.evaluate("location.hash = ''")
    browser.open(browser.path)
    browser.wait_for(READY)
    yield browser
    assert browser.problems == []
    assert browser.evaluate("window.hacked === undefined")


def section(page, name):
    page.evaluate(f"location.hash = '{name}'")
    page.wait_for(f"document.querySelector('#tabs [aria-selected=true]').dataset.section === '{name}'")


def texts(page, selector):
    """The texts of the elements that can be seen."""
    found = f"[...document.querySelectorAll({selector!r})].filter((each) => each.offsetParent !== null)"
    return page.evaluate(f"{found}.map((each) => each.textContent)")


def test_the_overview_shows_runs_and_their_first_curves(page):
    assert texts(page, ".run-card h2") == ["a/one", "a/two"]
    assert texts(page, ".badge") == ["finished", "failed"]
    assert texts(page, ".run-card .error") == ["RunError: the <b>end</b>"]
    assert "Training score" in texts(page, ".card h3")[0]
    page.wait_for("document.querySelectorAll('.cards.large path.line').length === 4")  # of two charts and two runs
    assert texts(page, ".cards.large .tick")[:2] == ["0", "0.2"]


def test_hiding_a_run_takes_its_curves_away(page):
    page.wait_for("document.querySelectorAll('.cards.large .card:first-child path.line').length === 2")
    page.evaluate("document.querySelector('.legend button').click()")
    page.wait_for("document.querySelectorAll('.cards.large .card:first-child path.line').length === 1")


def test_metrics_are_found_smoothed_and_drawn_over_hours(page):
    section(page, "curves")
    everything = len(texts(page, ".card h3"))
    page.evaluate(
        "(() => { const box = document.querySelector('input[placeholder^=\"Find metrics\"]');"
        " box.value = 'ENTR actor'; box.dispatchEvent(new Event('input')); })()"
    )
    assert texts(page, ".card h3") == ["actor/entropy"] and everything > 5
    visible = "document.querySelector('.metrics:not([hidden]) .card:not([hidden])')"
    page.wait_for(f"{visible}.querySelectorAll('path.line').length === 2")
    page.evaluate(
        "(() => { const range = [...document.querySelectorAll('input[type=range]')].at(-1);"
        " range.value = 0.5; range.dispatchEvent(new Event('input')); })()"
    )
    page.wait_for(f"{visible}.querySelectorAll('path.line').length === 4")  # and faint what they were
    page.evaluate("[...document.querySelectorAll('[data-axis=hours]')].at(-1).click()")
    page.wait_for(f"{visible}.querySelector('.label').textContent === 'hours'")


def test_a_drag_zooms_and_a_button_shows_all_again(page):
    ticks = (
        "[...document.querySelectorAll('.cards.large .card:first-child .tick')].map((each) => each.textContent).join()"
    )
    page.wait_for("document.querySelector('.cards.large path.line') !== null")
    before = page.evaluate(ticks)
    page.evaluate("""(() => {
        const picture = document.querySelector('.cards.large svg'), box = picture.getBoundingClientRect();
        for (const [kind, x] of [['pointerdown', 100], ['pointermove', 200], ['pointerup', 200]])
          picture.dispatchEvent(new PointerEvent(kind, { clientX: box.left + x, clientY: box.top + 50 }));
    })()""")
    page.wait_for(f"{ticks} !== {before!r}")
    page.evaluate("document.querySelector('.reset').click()")
    page.wait_for(f"{ticks} === {before!r}")


def test_timing_names_every_part_and_what_is_left(page):
    section(page, "timing")
    rows = texts(page, ".timing:first-child .parts tr")
    assert rows == ["update_actor17 min56 %", "gen10 min33 %", "other3 min11 %"]
    page.wait_for("document.querySelectorAll('path.area').length === 6")


def test_distributions_are_painted(page):
    section(page, "distributions")
    page.wait_for("document.querySelectorAll('canvas').length === 4")
    painted = "document.querySelector('canvas').getContext('2d').getImageData(9, 9, 1, 1).data[3]"
    assert page.evaluate(painted) > 0


def test_a_sample_shows_messages_score_and_coloured_tokens(page):
    section(page, "samples")
    page.wait_for("document.querySelector('.response') !== null")
    assert texts(page, ".response") == ["two and↵\n<two>"]
    assert texts(page, ".message .text")[0].startswith("question 2 </script><script>window.hacked")
    assert texts(page, ".facts dd")[:3] == ["1", "1", "4"]
    assert texts(page, ".siblings button") == ["1", "0"]
    strong = "[...document.querySelectorAll('.token')].map((each) => each.style.background !== '')"
    assert page.evaluate(strong) == [False, True, False]  # -0.1, -4.0 and 0.0 nats
    page.evaluate(
        "[...document.querySelectorAll('.colours button')].find((each) => each.textContent === 'Advantage').click()"
    )
    assert page.evaluate(strong) == [True, True, True]


def test_samples_are_filtered_by_words_and_run(page):
    section(page, "samples")
    page.wait_for("document.querySelector('.response') !== null")
    box = "document.querySelector('input[placeholder^=\"Find in\"]')"
    page.evaluate(f"(() => {{ {box}.value = 'question 12 '; {box}.dispatchEvent(new Event('input')); }})()")
    page.wait_for("document.querySelectorAll('.row').length === 4")
    page.evaluate(
        "(() => { const run = document.querySelector('select[aria-label=Run]');"
        " run.value = '1'; run.dispatchEvent(new Event('change')); })()"
    )
    page.wait_for("document.querySelectorAll('.row').length === 2")


def test_configuration_shows_what_differs_between_runs(page):
    section(page, "configuration")
    assert texts(page, ".config tbody tr") == ["actor.optim.lr0.0010.01"]
    page.evaluate("document.querySelector('.scroll').parentNode.querySelector('input[type=checkbox]').click()")
    page.wait_for("document.querySelectorAll('.config tbody tr').length === 5")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [420, 1440])
def test_every_section_draws_in_light_and_dark_wide_and_narrow(page, dark, width):
    page.size(width, 900, dark=dark)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 18, 22)" if dark else "rgb(247, 247, 245)")
    for name in ("curves", "timing", "timeline", "distributions", "samples", "configuration", "overview"):
        section(page, name)
        page.wait_for("new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(true), 30)))")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
    page.size(1200, 900)


def test_the_page_of_one_run_answers_to_every_control(browser, runs, tmp_path):
    write_page(tmp_path / "one.html", runs[:1], [read_records(runs[0])], 100)
    browser.size(1200, 900)
    browser.open(tmp_path / "one.html")
    browser.wait_for(READY)
    assert texts(browser, ".legend button") == []
    for name in ("overview", "curves", "timing", "timeline", "distributions", "samples", "configuration"):
        section(browser, name)
        browser.wait_for("document.querySelector('.note')?.textContent !== 'Unpacking …'")
        for kind, event in (("input[type=range]", "input"), ("input[type=search]", "input"), ("select", "change")):
            all_shown = f"[...document.querySelectorAll('{kind}')].filter((each) => each.offsetParent !== null)"
            browser.evaluate(f"{all_shown}.forEach((each) => each.dispatchEvent(new Event('{event}')))")
        for kind in ("input[type=checkbox]", "main button"):
            all_shown = f"[...document.querySelectorAll('{kind}')].filter((each) => each.offsetParent !== null)"
            browser.evaluate(f"{all_shown}.forEach((each) => each.click())")
    section(browser, "configuration")
    assert texts(browser, ".config thead th")[1:] == ["default", "a/one"]
    browser.evaluate("document.getElementById('theme').click()")
    browser.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(16, 18, 22)'")
    assert browser.problems == []
    browser.evaluate("localStorage.clear()")


@pytest.fixture
def episodes(browser, agent_run, tmp_path):
    """The page of a run with an agent."""
    write_page(tmp_path / "agent.html", [agent_run], [read_records(agent_run)], 100)
    browser.size(1200, 900)
    browser.open(tmp_path / "agent.html")
    browser.wait_for(READY)
    section(browser, "samples")
    browser.wait_for("document.querySelector('.times') !== null")
    yield browser
    assert browser.problems == []
    assert browser.evaluate("window.hacked === undefined")


def colour(page, name):
    page.evaluate(
        f"[...document.querySelectorAll('.colours button')].find((each) => each.textContent === '{name}').click()"
    )


def test_an_episode_is_a_conversation_with_turns_tools_branches_and_artifacts(episodes):
    colour(episodes, "Plain")
    assert texts(episodes, ".detail > .message h4") == ["user", "assistant", "tool · add", "assistant"]
    first, last = texts(episodes, ".detail > .message .turn")
    assert first.startswith("turn 1 · ") and first.endswith("4 tokens" + "reward 0.5")
    assert last.startswith("turn 4 · ") and last.endswith("6 tokens · ended by length" + "reward −0.25")
    assert texts(episodes, ".detail > .message .response") == ["two", "answer"]
    assert texts(episodes, ".call") == ['add {"a": 2, "b": 2}']
    assert texts(episodes, ".message.policy summary") == ["reasoning"]
    heads = texts(episodes, ".branch summary")
    assert heads[0] == "branch 1begins anew · tokens: 1 shared, 9 further"
    assert heads[1:] == ["branch 2continues turn 1 · tokens: 6 shared, 10 further", "stdout"]
    assert texts(episodes, ".branch .response") == ["answer 6<|im_end|>", "answer 11<|im_end|>"]
    assert [text.split()[0] for text in texts(episodes, ".times span")][:3] == ["waiting", "generating", "tool"]
    facts = dict(zip(texts(episodes, ".facts dt"), texts(episodes, ".facts dd"), strict=True))
    assert (facts["turns"], facts["branches"]) == ("4", "2")


def test_tokens_of_each_turn_and_branch_are_coloured(episodes):
    colour(episodes, "Advantage")
    assert texts(episodes, ".detail > .message .response") == ["two<|im_end|>", "answer"]
    painted = "[...document.querySelectorAll('.token')].filter((each) => each.style.background !== '').length"
    assert episodes.evaluate("document.querySelectorAll('.token').length") == 4 + 6 + 9 + 10
    assert episodes.evaluate(painted) > 20
    colour(episodes, "Plain")
    assert episodes.evaluate("document.querySelectorAll('.detail > .message .token').length") == 0


def test_the_search_finds_words_of_tools(episodes):
    box = "document.querySelector('input[placeholder^=\"Find in\"]')"
    for words, count in (("4 </script>", 4), ("nothing of this", 0)):
        episodes.evaluate(f"(() => {{ {box}.value = {words!r}; {box}.dispatchEvent(new Event('input')); }})()")
        episodes.wait_for(f"document.querySelector('.count').textContent === '{count} samples'")


def test_the_timeline_draws_episodes_and_opens_their_samples(episodes):
    section(episodes, "timeline")
    episodes.wait_for("document.querySelectorAll('.bars').length === 4")
    assert texts(episodes, ".card h3") == ["Episodes at work", "Episodes"]
    assert texts(episodes, ".card.wide:last-child .tick")[:2] == ["group 0", "group 1"]
    [note] = texts(episodes, ".note")
    assert note.startswith("4 episodes in ") and "half ended within" in note and "The last was response" in note
    bars = "[...document.querySelectorAll('.bars')].map((each) => each.getAttribute('d').split('M').length - 1)"
    waiting, generating, tool, _ = episodes.evaluate(bars)
    assert waiting >= 12 and generating == 16 and tool >= 4
    point = """(kind, row) => {
        const picture = document.querySelector('.card.wide:last-child svg'), box = picture.getBoundingClientRect();
        const at = { clientX: box.left + 300, clientY: box.top + 8 + 18 * row + 9 };
        picture.dispatchEvent(new PointerEvent(kind, at));
    }"""
    episodes.evaluate(f"({point})('pointermove', 1)")
    assert texts(episodes, ".tip-head") == ["group 0, response 1: score 0.5"]
    episodes.evaluate(f"({point})('click', 1)")
    episodes.wait_for("document.querySelector('.siblings [aria-pressed=true]')?.textContent === '0.5'")
    assert episodes.evaluate("location.hash") == "#samples"
