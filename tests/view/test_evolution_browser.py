"""The page of a run in a real browser: its marks, what a click and the keyboard show, hostile texts, no network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, chromium
from evolution_journal import NASTY, Written, write_run
from hand_plan import hand_times, pipeline_plan

from pibroch.runtime.directives import Schedule, Split
from pibroch.view import render
from pibroch.view.evolution import read_run, render_evolution

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chromium]:
    if chromium() is None:
        pytest.skip("no chromium on PATH")
    with Chromium() as running:
        yield running


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write_run(tmp_path_factory.mktemp("run"), evaluations=20)


def written(told: Written, *, timeline: str | None = None) -> Path:
    path = told.path / "report.html"
    path.write_text(render_evolution(read_run(told.path), timeline=timeline), encoding="utf-8")
    return path


@pytest.fixture
def opened(chrome: Chromium, told: Written) -> Chromium:
    chrome.open(written(told), width=1200)
    return chrome


def centre(chrome: Chromium, selector: str) -> tuple[float, float]:
    """The middle of an element that is scrolled into view."""
    chrome.evaluate(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
    chrome.frame()
    x, y = chrome.evaluate(
        f"(b => [b.x + b.width / 2, b.y + b.height / 2])(document.querySelector({selector!r}).getBoundingClientRect())"
    )
    return float(x), float(y)


def shown(chrome: Chromium) -> str:
    text: str = chrome.evaluate("document.getElementById('chosen').innerText")
    return text


def test_there_is_a_node_per_schedule_and_an_error_bar_per_point(opened: Chromium, told: Written) -> None:
    assert opened.evaluate("document.querySelectorAll('#lineage .pick').length") == len(told.schedules)
    points = len(told.speed) - 1  # without the start
    assert opened.evaluate("document.querySelectorAll('#speeds .point').length") == points
    bars = opened.evaluate("""[...document.querySelectorAll('#speeds .point')]
      .filter(p => p.querySelector('.error').getBBox().height > 4).length""")
    assert bars == points
    assert opened.evaluate("document.querySelector('#speeds .best').getTotalLength()") > 400
    assert opened.evaluate("document.querySelectorAll('#lineage .m-faster').length") == list(
        told.verdicts.values()
    ).count("faster")


def test_the_nodes_of_the_tree_do_not_overlap(opened: Chromium) -> None:
    places = opened.evaluate("""[...document.querySelectorAll('#lineage .hit')]
      .map(c => [+c.getAttribute('cx'), +c.getAttribute('cy')])""")
    gaps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for i, a in enumerate(places) for b in places[:i]]
    assert min(gaps) >= 20
    assert all(0 < x < 1160 for x, _ in places)


def test_a_click_on_a_node_shows_its_edit_its_reason_and_its_figures(opened: Chromium, told: Written) -> None:
    assert "Choose a mark" in shown(opened)
    for number in (2, 5):
        opened.click(*centre(opened, f"#lineage .pick[data-i='{number}']"))
        text = shown(opened)
        key = told.schedules[number]
        assert f"Evaluation {number}" in text
        assert f"reason {number}" in text
        assert f"{told.speed[key]:.3f}×" in text
        edit = opened.evaluate("document.getElementById('edit').textContent")
        assert f'"to": {told.edits[key]["to"]}' in edit
    # The same candidate is marked in all figures.
    assert opened.evaluate("[...document.querySelectorAll('.chosen')].map(e => e.closest('svg').id).sort()") == [
        "lineage",
        "pareto",
        "speeds",
    ]
    opened.click(*centre(opened, "#chosen button"))
    assert "Choose a mark" in shown(opened)


def test_a_click_on_a_point_of_the_other_figures_shows_the_same(opened: Chromium, told: Written) -> None:
    for figure in ("speeds", "pareto"):
        opened.click(*centre(opened, f"#{figure} .pick[data-i='7'] .m"))
        assert "Evaluation 7" in shown(opened)
        opened.evaluate("document.querySelector('#chosen button').click()")
    assert told.verdicts[told.schedules[7]] == "faster"


def test_the_keyboard_walks_the_tree(opened: Chromium) -> None:
    opened.evaluate("document.querySelector('#lineage .pick').focus()")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "End", "Home"):
        opened.press(key)
        seen.append(opened.evaluate("document.querySelector('#chosen h3').textContent"))
    assert seen == ["Evaluation 1", "Evaluation 2", "The start", "Evaluation 20", "The start"]
    opened.press("Escape")
    assert "Choose a mark" in shown(opened)
    # One stop for Tab in each figure.
    assert opened.evaluate("""[...document.querySelectorAll('.figure')]
      .map(f => f.querySelectorAll('.pick[tabindex="0"]').length)""") == [1, 1, 1]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 360])
def test_no_problem_no_request_no_sideways_scrolling(chrome: Chromium, told: Written, width: int, dark: bool) -> None:
    path = written(told)
    chrome.open(path, width=width, height=800, dark=dark)
    chrome.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert chrome.problems == []
    assert chrome.requests == [path.resolve().as_uri()]
    assert chrome.evaluate("document.documentElement.scrollWidth") <= width
    assert chrome.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(253, 252, 250)"
    )
    if width == 1200:
        wide = chrome.evaluate("""[...document.querySelectorAll('.wide')].filter(b => b.scrollWidth > b.clientWidth)
          .map(b => b.getAttribute('aria-label'))""")
        assert wide == []


@pytest.mark.parametrize("dark", [False, True])
def test_marks_and_words_stand_out_from_the_paper(chrome: Chromium, told: Written, dark: bool) -> None:
    """Contrast as WCAG 2 defines it: 3 for marks, 4.5 for words."""
    chrome.open(written(told), dark=dark)
    ratios = chrome.evaluate("""(() => {
      const light = (c) => c.match(/\\d+/g).slice(0, 3).map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
      const paper = light(getComputedStyle(document.body).backgroundColor);
      const against = (c) => (Math.max(light(c), paper) + .05) / (Math.min(light(c), paper) + .05);
      const marks = ['start', 'faster', 'slower', 'undecided', 'unequal'].map(k => document.querySelector('.m-' + k))
        .map(e => against(getComputedStyle(e).fill));
      const words = ['.figure .tick', '.figure .number', '.log td', '.changes del', '.note']
        .map(s => document.querySelector(s))
        .map(e => against(getComputedStyle(e)[e.namespaceURI.endsWith('svg') ? 'fill' : 'color']));
      return [Math.min(...marks), Math.min(...words)]; })()""")
    assert ratios[0] >= 3
    assert ratios[1] >= 4.5


def test_everything_that_can_be_reached_has_a_name(opened: Chromium) -> None:
    nameless = opened.evaluate("""[...document.querySelectorAll('button, iframe, [role], [tabindex]')]
      .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.title
        || e.textContent.trim()))
      .map(e => e.outerHTML.slice(0, 80))""")
    assert nameless == []
    lost = opened.evaluate("""[...document.querySelectorAll('[aria-labelledby]')]
      .filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length""")
    assert lost == 0
    assert opened.evaluate("[...document.querySelectorAll('.pick')].every(p => p.querySelector('title'))") is True


def test_hostile_texts_are_only_text(chrome: Chromium, tmp_path: Path) -> None:
    told = write_run(tmp_path, evaluations=20, nasty=True)
    path = written(told)
    chrome.open(path, width=1200)
    for number in range(0, 21, 4):
        chrome.evaluate(f"""document.querySelector("#lineage .pick[data-i='{number}']")
          .dispatchEvent(new MouseEvent('click', {{bubbles: true}}))""")
    assert NASTY in chrome.evaluate("document.getElementById('chosen').textContent")
    assert chrome.evaluate("document.querySelector('h1').textContent").endswith(NASTY)
    assert chrome.evaluate("window.pwned ?? 0") == 0
    assert chrome.evaluate("document.querySelectorAll('img').length") == 0
    assert chrome.problems == []
    assert chrome.requests == [path.resolve().as_uri()]
    assert chrome.evaluate("document.documentElement.scrollWidth") <= 1200


def test_the_timeline_in_the_page_works(chrome: Chromium, told: Written) -> None:
    plan = pipeline_plan(2, 4)
    schedule = Schedule(directives=[Split(num_microbatches=4)])
    path = written(told, timeline=render(title=NASTY, plan=plan, schedule=schedule, simulation=hand_times(plan)))
    chrome.open(path, width=1200)
    inner = "document.querySelector('iframe').contentDocument"
    assert chrome.evaluate(f"{inner}.querySelectorAll('#table tbody tr').length") == len(plan.tasks)
    assert chrome.evaluate(f"{inner}.documentElement.scrollHeight") <= chrome.evaluate(
        "document.querySelector('iframe').clientHeight"
    )
    chrome.evaluate(f"{inner}.querySelector('#table button').click()")
    assert "Forward of stage 0" in chrome.evaluate(f"{inner}.getElementById('details').textContent")
    assert chrome.evaluate("(window.pwned ?? 0) + (document.querySelector('iframe').contentWindow.pwned ?? 0)") == 0
    assert chrome.problems == []
    assert [url for url in chrome.requests if url != "about:srcdoc"] == [path.resolve().as_uri()]


@pytest.mark.parametrize("evaluations", [0, 1, 500])
def test_few_and_many_evaluations(chrome: Chromium, tmp_path: Path, evaluations: int) -> None:
    told = write_run(tmp_path, evaluations=evaluations, end=None)
    path = written(told)
    assert path.stat().st_size < 100_000 + 4000 * evaluations
    chrome.open(path, width=1200)
    assert chrome.problems == []
    assert chrome.evaluate("document.querySelectorAll('#lineage .pick').length") == evaluations + 1
    assert chrome.evaluate("document.documentElement.scrollWidth") <= 1200
    last = f"#lineage .pick[data-i='{evaluations}']"
    chrome.click(*centre(chrome, last))
    assert ("The start" if evaluations == 0 else f"Evaluation {evaluations}") in shown(chrome)
    places = chrome.evaluate("""[...document.querySelectorAll('#lineage .hit')]
      .map(c => c.getAttribute('cx') + ' ' + c.getAttribute('cy'))""")
    assert len(set(places)) == evaluations + 1
