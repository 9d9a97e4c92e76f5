"""The report in a real browser: it fetches nothing, has no errors, and what can be clicked does what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedexp.report.__main__ import main
from tests.browser import browsing
from tests.unit.report.made import write_run

WIDTHS = (400, 700, 1000, 1100, 1600)
SCHEMES = ("light", "dark")
RESULTS = Path(__file__).parents[3] / "multirun" / "results"


@pytest.fixture(scope="module")
def browser():
    with browsing() as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three methods in two scenes, and a run that has failed."""
    folder = tmp_path_factory.mktemp("page")
    for seed in (0, 1, 2):
        for epochs in (1, 5):
            for algo in ("fedavg", "map"):
                write_run(folder, algo, seed, epochs=epochs)
            write_run(folder, "fedrs", seed, alpha=0.5, epochs=epochs)
    failed = write_run(folder, "scaffold", 0, done=False)
    (failed.path / "error.txt").write_text(f"ClientError: {'a long message, ' * 20}{'x' * 200}\n")
    assert main([str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture
def page(browser, report):
    browser.prefer("light")
    browser.resize(1000)
    browser.log("browser")
    browser.log("performance")
    browser.open(report)
    browser.run("localStorage.clear()")
    return browser


def requests(browser) -> list[str]:
    events = [json.loads(entry["message"])["message"] for entry in browser.log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def centre(browser, selector: str, number: int = 0) -> tuple[float, float]:
    """Where the middle of an element is, once it is in sight."""
    return tuple(
        browser.run(
            "const e = document.querySelectorAll(arguments[0])[arguments[1]];"
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]",
            selector, number,
        )
    )  # fmt: skip


def click(browser, selector: str, number: int = 0) -> None:
    browser.point(*centre(browser, selector, number), click=True)


def column(browser, table: int, place: int) -> list[str]:
    script = "return [...document.querySelectorAll('.table table')[arguments[0]].tBodies[0].rows]"
    return browser.run(f"{script}.map(row => row.cells[arguments[1]].innerText.trim())", table, place)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The report of the committed results."""
    to = tmp_path_factory.mktemp("results") / "results.html"
    assert main([str(RESULTS), f"to={to}"]) == 0
    return to


# ---------------------------------------------------------------- offline, without errors
def test_no_request_and_no_error(page, report):
    for number in range(len(page.run("return [...document.querySelectorAll('.numbers summary')]"))):
        page.run("document.querySelectorAll('.numbers summary')[arguments[0]].click()", number)
    page.run("document.getElementById('theme').click()")
    page.wait("return document.documentElement.dataset.drawn === 'true'")
    assert [url for url in requests(page) if not url.startswith("data:")] == [report.as_uri()]
    assert page.log("browser") == []


def test_the_log_would_have_shown_both(page):
    """That nothing is seen above is worth something only if it could be."""
    page.run("console.error('seen'); fetch('http://127.0.0.1:9/x').catch(() => {})")
    page.wait("return true")
    said = [entry["message"] for entry in page.log("browser") if entry["level"] == "SEVERE"]
    assert any("seen" in message for message in said)
    assert any("Content Security Policy" in message for message in said)  # the page itself allows no request


def test_all_figures_are_drawn(page):
    drawn = page.run("return [...document.querySelectorAll('figure')].map(f => f.querySelectorAll('svg path').length)")
    assert len(drawn) > 10
    assert min(drawn) > 3
    described = "[...document.querySelectorAll('figure [role=graphics-document]')]"
    labels = page.run(f"return {described}.map(figure => figure.getAttribute('aria-label'))")
    assert len(labels) == len(drawn)
    assert all(len(label) > 40 for label in labels)


# ---------------------------------------------------------------- looks
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_does_not_scroll_sideways(page, width, scheme):
    page.prefer(scheme)
    page.resize(width)
    page.wait("return document.documentElement.dataset.drawn === 'true'")
    page.run("document.querySelectorAll('details').forEach(d => { d.open = !d.closest('.vega-embed') })")
    widest = page.run(
        "return [document.documentElement.scrollWidth - document.documentElement.clientWidth, innerWidth,"
        "...[...document.querySelectorAll('figure')].map(f => f.querySelector('svg').getBoundingClientRect().right"
        " - f.getBoundingClientRect().right)]"
    )
    assert widest[0] <= 0
    assert widest[1] == width
    assert max(widest[2:]) < 0  # figures stay in their frames


def test_claims_and_their_evidence_are_in_sight_on_a_narrow_screen(browser, results):
    """In columns, the evidence is out of sight on the right, and leaves empty space as high as itself."""
    browser.open(results)
    ends = "return [...document.querySelectorAll('.lines')].map(cell => cell.getBoundingClientRect().right)"
    for width in (400, 700):
        browser.resize(width)
        found = browser.run(ends)
        assert found
        assert max(found) <= width


def test_the_system_and_the_button_choose_light_or_dark(page):
    def look() -> tuple[int, int]:
        page.wait("return document.documentElement.dataset.drawn === 'true'")
        colours = page.run(
            "const text = document.querySelector('figure svg text');"
            "return [getComputedStyle(document.body).backgroundColor, text.getAttribute('fill')]"
        )
        brightness = [sum(map(int, page.run("return arguments[0].match(/\\d+/g)", colours[0])))]
        brightness.append(sum(int(colours[1][place : place + 2], 16) for place in (1, 3, 5)))
        return brightness[0] > 380, brightness[1] > 380

    assert look() == (True, False)  # a light page with dark text in figures
    click(page, "#theme")
    assert look() == (False, True)
    assert page.run("return document.getElementById('theme').getAttribute('aria-pressed')") == "true"
    click(page, "#theme")
    assert look() == (True, False)
    page.run("localStorage.clear(); delete document.documentElement.dataset.theme")
    page.prefer("dark")
    page.wait("return document.getElementById('theme').getAttribute('aria-pressed') === 'true'")
    assert look() == (False, True)


def test_text_can_be_read_in_both(page):
    """Contrast of text with what is behind it, as the guidelines for accessible pages ask for."""
    script = """
      const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
      const light = (colour) => {
        canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
          .map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
      };
      const back = (e) => { while (e && getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)') e = e.parentElement;
                            return light(getComputedStyle(e ?? document.body).backgroundColor); };
      return [...document.querySelectorAll('p, td, th button, dt, dd, li a, figcaption, summary, h1, h2, h3')]
        .filter(e => !e.closest('.vega-embed'))
        .map(e => { const [a, b] = [light(getComputedStyle(e).color), back(e)].sort((x, y) => y - x);
                    return [(a + .05) / (b + .05), e.outerHTML.slice(0, 80)]; })
        .filter(([ratio]) => ratio < arguments[0])"""
    for scheme in SCHEMES:
        page.prefer(scheme)
        assert page.run(script, 4.5) == []


# ---------------------------------------------------------------- what can be clicked
def test_a_figure_answers_the_pointer(page):
    page.point(*centre(page, "figure .mark-symbol path"))
    page.wait("return document.getElementById('vg-tooltip-element')?.classList.contains('visible')")
    assert "method" in page.run("return document.getElementById('vg-tooltip-element').innerText")


def test_a_click_in_the_legend_fades_the_others(page):
    lines = "[...document.querySelectorAll('#figure-1 .mark-line path')]"
    faint = f"return {lines}.filter(line => line.getAttribute('opacity') < 0.5).length"
    assert page.run(faint) == 0
    click(page, "#figure-1 .role-legend-symbol path")
    page.wait(faint.replace("return ", "return 0 < "))


def test_tables_are_sorted_by_a_click(page):
    heads = "document.querySelector('.table table').querySelectorAll('thead tr:last-child th')"
    names = page.run(f"return [...{heads}].map(head => head.innerText)")
    place = names.index("last")
    as_written = column(page, 0, place)
    head = f".table:first-of-type thead tr:last-child th:nth-child({place + 1}) button"
    click(page, head)
    down = column(page, 0, place)
    assert down == sorted(as_written, key=lambda text: -float(text.split()[0]))
    assert down != as_written
    click(page, head)
    assert [text.split()[0] for text in column(page, 0, place)] == [text.split()[0] for text in down][::-1]
    assert page.run("return document.querySelector('th[aria-sort]').getAttribute('aria-sort')") == "ascending"
    click(page, head.replace(str(place + 1), "2"))  # texts
    assert column(page, 0, 1) == sorted(column(page, 0, 1))


def test_numbers_are_written_in_another_form(page):
    assert all("±" in text for text in column(page, 0, 3))
    click(page, ".choice button", 1)
    assert all("[" in text for text in column(page, 0, 3))
    click(page, ".choice button", 2)
    assert {len(text.split()) for text in column(page, 0, 3)} == {3}
    pressed = page.run(
        "return [...document.querySelectorAll('.choice')[0].children].map(b => b.getAttribute('aria-pressed'))"
    )
    assert pressed == ["false", "false", "true"]


def test_the_numbers_of_a_figure_can_be_seen(page):
    click(page, "#figure-1 .numbers summary")
    page.wait("return document.querySelector('#figure-1 .numbers table') !== null")
    rows = page.run(
        "return [...document.querySelectorAll('#figure-1 .numbers tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.innerText))"
    )
    assert len(rows) == 2 * 3 * 4  # scenes, methods, rounds
    assert rows[0][:3] == ["epochs=1", "fedavg", "1"]


def test_contents_lead_to_their_sections(page):
    links = page.run("return [...document.querySelectorAll('nav a')].map(a => a.hash)")
    assert {"#results", "#missing", "#clients", "#cost", "#failures", "#ran"} <= set(links)
    assert page.run("return arguments[0].filter(hash => !document.querySelector(hash))", links) == []


def test_what_a_screen_reader_needs_is_there(page):
    assert page.run("return [...document.querySelectorAll('table')].filter(t => !t.caption?.innerText).length") == 0
    assert page.run("return [...document.querySelectorAll('button')].filter(b => !b.innerText.trim()).length") == 0
    assert page.run("return document.querySelectorAll('th:not([scope]):not(.groups th)').length") == 0
    assert (
        page.run(
            "return [...document.querySelectorAll('.scroll')].filter(s => s.tabIndex !== 0 || !s.ariaLabel).length"
        )
        == 0
    )
