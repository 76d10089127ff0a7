"""The page: what it holds without a browser, and what a real browser does with it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from chromium import Chromium, chromium
from hand_plan import HandTimes, hand_times, pipeline_plan

from pibroch.runtime.directives import Order, Place, Replicate, Schedule, Split
from pibroch.runtime.plan import Plan
from pibroch.runtime.trace import Event, Trace, events_of
from pibroch.view import render
from pibroch.view.parts import seconds, size

COST = {"F": 0.01, "B": 0.02, "BI": 0.01, "BW": 0.01, "SEND": 0.0025, "REDUCE": 0.02, "UPDATE": 0.005}
NASTY = '</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1> & "quotes" \'\u2028'
browser = pytest.mark.browser


def schedule_of(plan: Plan) -> Schedule:
    rows: list[Any] = [Split(num_microbatches=plan.microbatches)]
    rows += [Place(filter={"PP": s}, devices=row, stream="pp") for s, row in enumerate(plan.placement)]
    if plan.replicas > 1:
        rows += [Replicate(filter={"PP": s}, devices=row, bucket_size=25) for s, row in enumerate(plan.placement)]
    for stage in range(plan.stages):
        tasks = [plan.tasks[i] for i in plan.streams[stage]["compute"]]
        chunks: list[Any] = [{"PP": t.stage, "MB": t.mb, "PASS": t.op} for t in tasks if t.op != "UPDATE"]
        rows.append(Order(filters=chunks[:200]))
    return Schedule(directives=rows)


def page(plan: Plan, times: HandTimes, **options: Any) -> str:
    given: dict[str, Any] = {"title": "a schedule", "schedule": schedule_of(plan), **options}
    return render(plan=plan, simulation=times, **given)


def measured(plan: Plan, *, emulated: bool = False) -> Trace:
    slower = hand_times(plan, cost={name: cost * 1.1 for name, cost in COST.items()})
    return Trace(plan, events_of(plan, slower), emulated)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return pipeline_plan(2, 4, replicas=2, split_backward=True)


@pytest.fixture(scope="module")
def full(plan: Plan) -> str:
    verdict = {"verified": True, "equal": True, "tokens_per_second": 12345.6, "reference": "replay"}
    stages = [("split", "0F0 0F1"), ("<b>place</b>", NASTY)]
    return page(plan, hand_times(plan, cost=COST), trace=measured(plan), verdict=verdict, stages=stages)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_loads_nothing_and_its_policy_names_its_script(full: str) -> None:
    assert not re.search(r'(?:src|href)="(?!#|data:,")', full.split("<script", 1)[0])
    assert "@import" not in full
    assert "url(" not in full.split("</style>")[0]
    script = re.findall(r"<script>(.*?)</script>", full, re.S)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in full


def test_facts_are_in_the_page_without_a_script(full: str) -> None:
    without = re.sub(r"<script.*?</script>", "", full, flags=re.S)
    for text in ("the plan is verified", "equal to the reference", "12,346", "4 per replica", "exposed reduction",
                 "&quot;num_microbatches&quot;: 4", "0BI3", "+10.0% against simulated"):  # fmt: skip
        assert text in without, text


def test_unknown_is_not_shown_as_passed(plan: Plan) -> None:
    html = page(plan, hand_times(plan, cost=COST))
    assert "not verified" in html
    assert "not compared with the reference" in html
    assert "not run" in html
    failed = page(plan, hand_times(plan, cost=COST), verdict={"verified": False, "equal": False})
    assert "the plan fails verification" in failed
    assert "not equal to the reference" in failed


def test_an_emulated_trace_is_never_called_measured(plan: Plan) -> None:
    html = page(plan, hand_times(plan, cost=COST), trace=measured(plan, emulated=True))
    assert [run["label"] for run in data_of(html)["runs"]] == ["Simulated", "Emulated"]
    assert "measured" not in re.sub(r"<(script|style).*?</\1>", "", html, flags=re.S).lower()


def test_times_keep_their_decimals_in_the_compact_data(plan: Plan) -> None:
    times = hand_times(plan)
    run = data_of(page(plan, times))["runs"][0]
    assert run["unit"] == "cost"  # each forward takes exactly 1
    assert [value * run["tick"] for value in run["end"]] == pytest.approx(times.end)
    idle: dict[int, float] = {}
    for device, start, end, *_ in run["bubbles"]:
        idle[device] = idle.get(device, 0.0) + (end - start) * run["tick"]
    assert [idle[d] for d in range(plan.devices)] == pytest.approx(times.idle)


def test_a_task_that_never_ran_is_marked(plan: Plan) -> None:
    trace = measured(plan)
    part = replace(trace, events=[event for event in trace.events if event.task != 0])
    run = data_of(page(plan, hand_times(plan, cost=COST), trace=part))["runs"][1]
    assert run["start"][0] == run["end"][0] == -1
    assert min(run["start"][1:]) >= 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 s"), (1.5, "1.5 s"), (0.01234, "12.34 ms"), (2.5e-5, "25 µs"), (3e-8, "30 ns"), (90.0, "90 s")],
)
def test_seconds_take_the_unit_that_fits(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB")])
def test_sizes_take_the_unit_that_fits(value: int, text: str) -> None:
    assert size(value) == text


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chromium]:
    if chromium() is None:
        pytest.skip("no chromium on PATH")
    with Chromium() as running:
        yield running


@pytest.fixture
def opened(chrome: Chromium, full: str, tmp_path: Path) -> Chromium:
    """The full page at desktop size, with the timeline focused."""
    path = tmp_path / "page.html"
    path.write_text(full, encoding="utf-8")
    chrome.open(path)
    chrome.evaluate("document.getElementById('timeline').focus()")
    return chrome


def chosen(chrome: Chromium) -> str | None:
    text: str | None = chrome.evaluate("document.querySelector('#details h3 .mono')?.textContent ?? null")
    return text


@browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_no_problem_no_request_no_sideways_scrolling(
    chrome: Chromium, full: str, tmp_path: Path, width: int, dark: bool
) -> None:
    path = tmp_path / "page.html"
    path.write_text(full, encoding="utf-8")
    chrome.open(path, width=width, height=740, dark=dark)
    chrome.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert chrome.problems == []
    assert chrome.requests == [path.resolve().as_uri()]
    assert chrome.evaluate("document.documentElement.scrollWidth") <= width
    hidden = chrome.evaluate("(b => b.scrollWidth - b.clientWidth)(document.getElementById('table').parentElement)")
    assert hidden == 0 if width == 1280 else hidden > 0
    # What is cut off at the side of its box shows a shadow there.
    assert "linear-gradient" in chrome.evaluate(
        "getComputedStyle(document.getElementById('table').parentElement).backgroundImage"
    )
    assert chrome.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(18, 22, 28)" if dark else "rgb(253, 252, 250)"
    )
    colours = chrome.evaluate("""(() => {
      const c = document.getElementById('canvas'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      const seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
      return [...seen]; })()""")
    for name in ("F", "BI", "BW", "UPDATE", "REDUCE"):
        value = chrome.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        assert int(value[1:], 16) in colours, name


@browser
def test_keyboard_walks_tasks_and_zooms(opened: Chromium) -> None:
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "End", "Home"):
        opened.press(key)
        seen.append(chosen(opened))
    # Device 0's first two forwards, the send nearest in time, the forward nearest to it, the update, the first forward.
    assert seen == ["0F0", "0F1", "0>1F0", "0F1", "U0", "0F0"] or seen[:2] + seen[3:] == [
        "0F0",
        "0F1",
        "0F1",
        "U0",
        "0F0",
    ]
    assert "Forward of stage 0, microbatch 0" in opened.evaluate("document.getElementById('live').textContent")
    space = "document.getElementById('space').offsetWidth"
    before = opened.evaluate(space)
    opened.press("+")
    assert opened.evaluate(space) > 1.3 * before
    opened.press("-")
    opened.press("+")
    opened.press("0")
    assert opened.evaluate(space) == before
    opened.press("Escape")
    assert chosen(opened) is None
    assert opened.problems == []


@browser
def test_enter_goes_to_what_a_task_waited_for(opened: Chromium) -> None:
    opened.evaluate("document.getElementById('table-device').value = '1'")
    opened.evaluate("document.getElementById('table-device').dispatchEvent(new Event('change'))")
    opened.evaluate("[...document.querySelectorAll('#table th button')].find(b => b.textContent === '1F0').click()")
    path = [chosen(opened)]
    for _ in range(3):
        opened.press("Enter")
        path.append(chosen(opened))
    assert path == ["1F0", "1<0F0", "0>1F0", "0F0"]


@browser
def test_a_click_selects_what_lies_under_it(opened: Chromium) -> None:
    opened.evaluate("document.getElementById('timeline').scrollIntoView()")
    opened.frame()
    box = opened.evaluate(
        "(({x, y, width}) => [x, y, width])(document.getElementById('canvas').getBoundingClientRect())"
    )
    opened.click(box[0] + 96 + 4, box[1] + 26 + 30 + 14)
    assert chosen(opened) == "0F0"
    opened.click(box[0] + 40, box[1] + 26 + 30 + 14)
    assert chosen(opened) is None
    # Device 1 starts idle: the second device's compute row, after device 0's row and its three communication rows.
    opened.click(box[0] + 96 + 4, box[1] + 26 + 30 + 28 + 2 + 3 * 16 + 8 + 14)
    assert chosen(opened) == "idle"
    assert "warm-up" in opened.evaluate("document.getElementById('details').textContent")


@browser
def test_tab_order_starts_with_the_skip_links_and_every_control_has_a_name(
    chrome: Chromium, full: str, tmp_path: Path
) -> None:
    path = tmp_path / "page.html"
    path.write_text(full, encoding="utf-8")
    chrome.open(path)
    order = []
    for _ in range(12):
        chrome.press("Tab")
        order.append(chrome.evaluate("document.activeElement.id || document.activeElement.className"))
    assert order[:2] == ["skip", "skip"]
    assert order.index("zoom-in") < order.index("group") < order.index("comm") < order.index("timeline")
    nameless = chrome.evaluate("""[...document.querySelectorAll('button, select, input, [role], [tabindex]')]
      .filter(e => !(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.closest('label')
        || e.textContent.trim() || e.getAttribute('role') === 'status')).map(e => e.outerHTML.slice(0, 80))""")
    assert nameless == []
    lost = chrome.evaluate("""[...document.querySelectorAll('[aria-labelledby], [aria-describedby]')]
      .map(e => e.getAttribute('aria-labelledby') || e.getAttribute('aria-describedby'))
      .filter(id => !document.getElementById(id)).length""")
    assert lost == 0


@browser
def test_text_of_users_is_only_text(chrome: Chromium, plan: Plan, tmp_path: Path) -> None:
    schedule = Schedule(directives=[Place(filter={NASTY: 0}, devices=[0], stream=NASTY), Split(num_microbatches=4)])
    nasty = replace(plan, model=NASTY)
    times = hand_times(nasty, cost=COST)
    verdict = {"verified": True, "note": NASTY}
    path = tmp_path / "page.html"
    html = page(nasty, times, title=NASTY, schedule=schedule, verdict=verdict, stages=[(NASTY, NASTY)])
    path.write_text(html, encoding="utf-8")
    chrome.open(path)
    assert chrome.evaluate("window.pwned ?? 0") == 0
    assert chrome.evaluate("document.querySelector('h1').textContent") == NASTY
    assert chrome.evaluate("document.querySelectorAll('img').length") == 0
    shown = json.loads(chrome.evaluate("document.getElementById('json-text').textContent"))
    assert shown == schedule.to_json()
    assert chrome.problems == []
    assert chrome.requests == [path.resolve().as_uri()]


@browser
def test_the_saved_figure_is_svg_on_paper(opened: Chromium) -> None:
    opened.evaluate("""window.saved = new Promise(done => {
      URL.createObjectURL = blob => { blob.text().then(done); return 'blob:null/0'; };
      HTMLAnchorElement.prototype.click = () => {}; }); 0""")
    opened.evaluate("document.getElementById('save-svg').click()")
    figure = ElementTree.fromstring(opened.evaluate("window.saved"))
    texts = [e.text for e in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Simulated", "Measured", "Device 0", "Device 3"} <= set(texts)
    assert any(e.get("fill") == "#8fbaea" for e in figure.iter("{http://www.w3.org/2000/svg}rect"))


@browser
def test_copy_and_print(opened: Chromium, tmp_path: Path) -> None:
    opened.evaluate("document.getElementById('json').open = true")
    opened.evaluate("new Promise(done => { new MutationObserver(done).observe(document.getElementById('copy'), "
                    "{childList: true}); document.getElementById('copy').click(); })")  # fmt: skip
    assert opened.evaluate("document.getElementById('copy').textContent") in ("Copied", "Selected: press Ctrl+C")
    opened.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    assert opened.evaluate("document.documentElement.className") == ""
    assert opened.problems == []


@browser
def test_many_tasks_make_few_elements(chrome: Chromium, tmp_path: Path) -> None:
    plan = pipeline_plan(16, 260)
    assert len(plan.tasks) > 23_000
    # Any times do: each device works through its tasks one after another.
    times = HandTimes(plan, [0.0] * len(plan.tasks), [0.0] * len(plan.tasks), 0.0)
    for names in plan.streams.values():
        for ids in names.values():
            for at, i in enumerate(ids):
                times.start[i], times.end[i] = at * 0.001, (at + 1) * 0.001
    times.makespan = max(times.end)
    path = tmp_path / "page.html"
    path.write_text(page(plan, times), encoding="utf-8")
    assert path.stat().st_size < 200 * len(plan.tasks)
    chrome.open(path)
    chrome.evaluate("document.getElementById('timeline').focus()")
    for key in ("ArrowRight", "+", "+", "+", "End"):
        chrome.press(key)
    assert chosen(chrome) == "U0"
    assert chrome.evaluate("document.querySelectorAll('*').length") < 6000
    assert chrome.problems == []


def test_events_may_come_in_any_order(plan: Plan) -> None:
    trace = measured(plan)
    shuffled = Trace(plan, [Event(*event) for event in reversed(trace.events)])
    times = hand_times(plan, cost=COST)
    assert data_of(page(plan, times, trace=shuffled)) == data_of(page(plan, times, trace=trace))
