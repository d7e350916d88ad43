"""The page in a real browser: it sorts, answers to mouse and keys, fetches nothing, and says nothing to the console."""

import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from cpaan.reporting.page import write_page
from cpaan.reporting.results import Results, read_runs

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def missing(what: str) -> None:
    """Skip, or fail where a browser is promised to be there."""
    if os.environ.get("CPAAN_BROWSER") == "required":
        pytest.fail(f"{what}, and CPAAN_BROWSER=required")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    try:
        sync_playwright: Any = import_module("playwright.sync_api").sync_playwright
    except ImportError:
        missing("no playwright to drive a browser: pip install playwright")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        missing("no browser: apt-get install chromium (make browser)")
    with sync_playwright() as playwright:
        # Without a sandbox, which root has none of; the page is our own.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(results, path, pixels=(2, 3))
    return path


class Visit:
    """A page that is open, and all that it fetched and complained about."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_context(viewport={"width": 1200, "height": 900}, **options).new_page()
        self.fetched: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.fetched.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri())

    def column(self, number: int) -> list[str]:
        texts: list[str] = self.page.locator(f"#results-table tbody tr > :nth-child({number})").all_inner_texts()
        return texts

    def means(self, number: int) -> list[float]:
        shown = self.page.locator(f"#results-table tbody tr > :nth-child({number}) .mean").all_inner_texts()
        return [float(text.strip("▲▼ ")) for text in shown]

    def closed(self) -> None:
        assert self.said == []
        assert [url for url in self.fetched if not url.startswith("data:")] == [self.page.url.partition("#")[0]]
        assert self.page.title().startswith("cpaan report")
        self.page.context.close()


@pytest.fixture
def visit(browser: Any, report: Path) -> Iterator[Visit]:
    opened = Visit(browser, report)
    yield opened
    opened.closed()


def test_the_table_sorts_by_mouse_and_by_keys(visit: Visit, results: Results) -> None:
    methods = [method for method, _ in results.entries]
    assert visit.column(1) == methods
    button = visit.page.get_by_role("button", name="LSL with 1 shots: sort", exact=True)
    button.click()
    assert visit.means(2) == sorted(visit.means(2), reverse=True)
    assert sorted(visit.column(1)) == sorted(methods)
    header = visit.page.locator("#results-table th[aria-sort=descending]")
    assert header.count() == 1
    # The focus stays where it was, so that the same key turns the order around.
    visit.page.keyboard.press("Enter")
    assert visit.means(2) == sorted(visit.means(2))
    assert visit.page.locator("#results-table th[aria-sort=ascending]").count() == 1
    assert "lowest first" in visit.page.locator("#live").inner_text()
    visit.page.get_by_role("button", name="method: sort", exact=True).press("Space")
    assert visit.column(1) == sorted(methods)


def test_measures_and_differences_can_be_chosen(visit: Visit, results: Results) -> None:
    accuracy, differences = results.accuracy("top1"), results.differences("top1")
    visit.page.get_by_label("top-1").check()
    expected = [accuracy[entry, "LSL", 1].mean for entry in results.entries]
    assert visit.means(2) == pytest.approx(expected, abs=0.051)
    best = visit.page.locator("#results-table tbody tr > :nth-child(2).best").all_inner_texts()
    assert all(float(text.split()[0]) == pytest.approx(max(expected), abs=0.051) for text in best)
    visit.page.get_by_label("difference to nearest-prototype").check()
    assert visit.column(2)[0] == "reference"
    shown = visit.means(2)
    assert shown == pytest.approx([differences[e, "LSL", 1].mean for e in results.entries[1:]], abs=0.051)


def test_points_answer_to_the_mouse(visit: Visit, results: Results) -> None:
    panel = visit.page.locator(".maps svg.plot").nth(2)
    panel.scroll_into_view_if_needed()
    place = panel.locator(".made").first.bounding_box()
    tooltip = visit.page.locator("#tooltip")
    assert tooltip.is_hidden()
    visit.page.mouse.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
    assert tooltip.is_visible()
    text = tooltip.inner_text()
    assert "kind: " in text
    sample = results.runs[0].sample
    assert sample is not None
    assert "nearest base classes: base <b>" in text
    assert tooltip.locator("img").count() == 1
    assert visit.page.evaluate("document.querySelector('#tooltip img').naturalWidth") == 3
    # Each is what it is: the star of a class has the name of that class.
    for index, name in enumerate(sample.real.classes):
        star = panel.locator(f"g:nth-of-type({index + 1}) .made").first.bounding_box()
        visit.page.mouse.move(star["x"] + star["width"] / 2, star["y"] + star["height"] / 2)
        assert tooltip.locator(".title").inner_text() == name.replace("\u202e", "⟨U+202E⟩")
        assert "kind: synthetic, by ccov-gan" in tooltip.inner_text()
    visit.page.mouse.move(5, 5)
    assert tooltip.is_hidden()


def test_points_answer_to_keys_and_are_read_aloud(visit: Visit) -> None:
    panel = visit.page.locator(".maps svg.plot").nth(1)
    panel.focus()
    visit.page.keyboard.press("ArrowRight")
    live = visit.page.locator("#live")
    assert live.inner_text().startswith("<script>document.title = 'taken'</script>. kind: shot.")
    visit.page.keyboard.press("ArrowRight")
    assert "kind: synthetic, by c-gan" in live.inner_text()
    visit.page.keyboard.press("ArrowDown")
    assert live.inner_text().startswith("</script><img src=x")
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#tooltip").is_hidden()


def test_hostile_names_show_as_text(visit: Visit, results: Results) -> None:
    sample = results.runs[0].sample
    assert sample is not None
    shown = visit.page.locator(".legend bdi").all_inner_texts()
    for name in sample.real.classes:
        assert name.replace("\u202e", "⟨U+202E⟩") in shown
    assert visit.page.locator("main script, main img, main b").count() == 0
    assert visit.page.evaluate("document.scripts.length") == 2


def test_an_injected_script_would_not_run(visit: Visit) -> None:
    """Even if a name became markup, the page's policy keeps it from running; the console tells of the attempt."""
    run = "const s = document.createElement('script'); s.textContent = 'window.taken = 1'; document.body.append(s);"
    visit.page.evaluate(run)
    assert visit.page.evaluate("window.taken === undefined")
    assert all("Content Security Policy" in text for text in visit.said)
    visit.said.clear()


def test_figures_follow_their_legends(visit: Visit, results: Results) -> None:
    section = visit.page.locator("#accuracy-against-shots")
    assert section.locator("svg.plot path.line").count() == 2 * len(results.entries)
    button = section.get_by_role("button", name="ccov-gan")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert section.locator("svg.plot path.line").count() == 2 * (len(results.entries) - 1)
    titles = visit.page.locator("main h2").all_inner_texts()
    assert titles == [
        "Results", "Accuracy against shots", "Accuracy against diversity", "Maps of features", "Neighbourhood",
        "Losses", "How it was made",
    ]  # fmt: skip
    assert visit.page.locator("#losses figure").count() >= 5
    assert "cpaan bench 'my bank.npz'" in visit.page.locator("#how-it-was-made pre").first.inner_text()


def ground(page: Any) -> tuple[int, ...]:
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(part) for part in colour[4:-1].split(","))


def test_it_is_dark_where_the_system_is_and_can_be_turned(browser: Any, report: Path) -> None:
    dark = Visit(browser, report, color_scheme="dark")
    assert max(ground(dark.page)) < 60
    dark.page.get_by_role("button", name="Light").click()
    assert min(ground(dark.page)) > 200
    dark.page.get_by_role("button", name="Dark").click()
    assert max(ground(dark.page)) < 60
    dark.closed()
    light = Visit(browser, report, color_scheme="light")
    assert min(ground(light.page)) > 200
    light.closed()


def test_several_runs_on_a_telephone(browser: Any, ablation: list[Path], old_run: Path, tmp_path: Path) -> None:
    write_page(Results.of(read_runs([*ablation, old_run])), tmp_path / "several.html")
    narrow = Visit(browser, tmp_path / "several.html")
    narrow.page.set_viewport_size({"width": 380, "height": 800})
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 380
    assert narrow.page.locator("#neighbourhood-ablation svg.plot").count() == 2
    narrow.page.locator("#maps-of-features select").select_option(index=1)
    assert narrow.page.locator(".maps figure").count() == 2
    assert "kept no sample" in narrow.page.locator("#how-it-was-made").inner_text()
    narrow.page.get_by_role("button", name="run: sort", exact=True).click()
    narrow.closed()


def test_an_old_run_of_one_trial_shows_what_it_has(browser: Any, old_run: Path, tmp_path: Path) -> None:
    write_page(Results.of(read_runs([old_run])), tmp_path / "old.html", measure="top1")
    old = Visit(browser, tmp_path / "old.html")
    assert old.page.locator("main h2").all_inner_texts() == ["Results", "Accuracy against shots", "How it was made"]
    assert old.means(2) == [40.0, 45.0]
    old.page.locator("#accuracy-against-shots svg.plot").first.focus()
    old.page.keyboard.press("ArrowRight")
    assert old.page.locator("#live").inner_text() == "linear. LSL, K = 1: 40.0 %"
    old.closed()


def test_without_scripts_the_table_is_there(browser: Any, report: Path) -> None:
    plain = Visit(browser, report, java_script_enabled=False)
    assert "nearest-prototype" in plain.page.locator("noscript pre").inner_text()
    plain.closed()
