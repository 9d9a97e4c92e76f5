"""``python -m fedexp.report``: what is in the file, how large it is, and what is said of wrong input."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from fedexp.report.__main__ import main
from fedexp.report.figures import style
from fedexp.report.figures.kinds import KINDS, Kind
from fedexp.report.html import figures, sources
from fedexp.report.html.layout import Layout
from fedexp.report.html.tables import results_table
from fedexp.report.load import load
from fedexp.report.measure import Metric
from tests.unit.report import made
from tests.unit.report.made import write_run

RESULTS = Path(__file__).parents[3] / "multirun" / "results"
MAX_BYTES = 2_000_000  # of 30 runs


class Page(HTMLParser):
    """The tables of a page by their captions, and its headings."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.headings: list[tuple[int, str]] = []
        self._text: list[str] = []
        self._hidden = 0
        self._caption = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in ("caption", "td", "th", "h1", "h2", "h3", "h4"):
            self._text = []
        if tag == "tr" and self._caption:
            self.tables[self._caption].append([])
        if tag == "span":
            self._hidden = int("hidden" in dict(attrs))

    def handle_data(self, data):
        if not self._hidden:
            self._text.append(data)

    def handle_endtag(self, tag):
        text = "".join(self._text).strip()
        if tag == "span":
            self._hidden = 0
        if tag == "caption":
            self._caption = text
            self.tables.setdefault(text, [])
        if tag in ("td", "th"):
            self.tables[self._caption][-1].append(text)
        if tag == "table":
            self._caption = ""
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), text))


def embedded(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def rows_of(column, count):
    if isinstance(column, list):
        return column
    return [column["all"]] * count if "all" in column else [column["texts"][at] for at in column["at"]]


@pytest.fixture(scope="module")
def written(folder, tmp_path_factory):
    to = tmp_path_factory.mktemp("report") / "report.html"
    assert main([str(folder), f"to={to}"]) == 0
    return to.read_text()


@pytest.fixture
def no_figures(monkeypatch):
    """Figures take most of the time."""
    monkeypatch.setattr(sources, "figures_of", lambda *_: figures.Figures({}, ()))


# ---------------------------------------------------------------- content
def test_numbers_in_tables_are_those_of_the_runs(written):
    table = Page(written).tables["Accuracy of both goals"]
    head, *rows = table[1:]
    assert head == ["algo", "last", "mean", "last", "mean"]
    by_algo = {row[0]: row[1:] for row in rows}
    means = [made.aggregation("map", seed, made.ROUNDS) for seed in (0, 1, 2)]
    assert by_algo["map"][0] == f"{100 * sum(means) / 3:.1f} ± 2.0"
    assert set(by_algo) == {"fedavg", "map", "fedrs", "scaffold"}


def test_differences_are_paired_with_fedavg(written):
    rows = Page(written).tables["Less fedavg, points"][2:]
    assert {row[0]: row[1] for row in rows} == {
        "map": "+10.0 [+10.0, +10.0]", "fedrs": "−10.0 [−10.0, −10.0]", "scaffold": "+5.0 [+5.0, +5.0]",
    }  # fmt: skip


def test_costs_are_by_message_and_by_kind_of_work(written):
    page = Page(written)
    groups, head, *rows = page.tables["Bytes of a run by message"]
    assert (groups, head) == (["", "up", ""], ["algo", "model", "all", "per client and round"])
    assert rows[0][1:] == ["400 B", "400 B", "100 B"]
    assert page.tables["Seconds of a run by kind of work"][1] == ["algo", "train", "elapsed"]


def test_missing_classes_are_per_cent(written):
    head, *rows = Page(written).tables["Missing classes"][1:]
    assert head == ["algo", "absent", "forgotten"]
    last = [made.aggregation("fedavg", seed, made.ROUNDS) / 4 for seed in (0, 1, 2)]
    assert rows[0][1].startswith(f"{100 * sum(last) / 3:.1f} ± ")
    assert Metric("missing.absent").title == "personal accuracy on absent classes (%)"
    assert Metric("missing.window").unit == ""


def test_what_ran_is_told(written):
    page = Page(written)
    assert len(page.tables["12 runs"]) == 1 + 12
    assert "fedexp 0.1.0: 12 runs" in written
    assert re.search(r"<dt>local.epochs</dt><dd>5</dd>", written)  # in common
    assert re.search(r"<dt>seed</dt><dd>0, 1, 2</dd>", written)


def test_headings_are_in_order_and_figures_are_described(written):
    levels = [level for level, _ in Page(written).headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    described = re.findall(r'data-description="([^"]+)"', written)
    assert len(described) == len(embedded(written)["figures"]) > 8
    assert all(len(text) > 40 for text in described)
    assert "Shown: fedavg, fedrs, map, scaffold." in described[0]


def test_data_are_there_once_and_whole(written, runs):
    data = embedded(written)
    texts = [json.dumps(dataset) for dataset in data["data"].values()]
    assert len(set(texts)) == len(texts)
    assert not any(
        "values" in json.dumps(spec) and '"datasets"' in json.dumps(spec) for spec in data["figures"].values()
    )
    first = data["data"][data["figures"]["figure-1"]["data"]["kept"]]
    means = rows_of(first["columns"]["mean"], first["rows"])
    expected = KINDS["curves"](runs, {}).data["mean"]
    assert means == pytest.approx(list(expected), rel=1e-4)
    assert rows_of(first["columns"]["method"], first["rows"]) == list(KINDS["curves"](runs, {}).data["method"])


def test_nothing_is_fetched_and_nothing_escapes(tmp_path, no_figures):
    write_run(tmp_path / "runs", "fedavg", 0)
    config = next((tmp_path / "runs").glob("*/config.yaml"))
    config.write_text(config.read_text().replace("name: y", "name: '</script><b>x</b>'"))
    for path in (tmp_path / "runs").glob("*/result.json"):
        path.unlink()  # its checksum is of another file
    main([str(tmp_path / "runs")])
    text = (tmp_path / "runs" / "report.html").read_text()
    assert "<b>x</b>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text
    assert not re.search(r"<(?:script|img|iframe)[^>]*\ssrc\s*=|<link(?! rel=\"icon\" href=\"data:,\")", text)
    assert "default-src 'none'" in text


def test_scenes_are_told_apart_and_the_best_is_marked_in_each(swept, tmp_path):
    runs = load(swept)
    layout = Layout.of(runs)
    assert layout == Layout(("algo", "algo.rs.alpha"), ("local.epochs",))
    table = results_table(runs, layout, {"aggregation.mean": ("mean", "")}, "x")
    assert [tuple(cell.text for cell in row[:3]) for row in table.rows][:4] == [
        ("1", "fedavg", "–"), ("1", "fedrs", "0.01"), ("1", "fedrs", "0.1"), ("1", "fedrs", "0.9"),
    ]  # fmt: skip
    assert [row[0].text for row in table.rows if row[-1].look == "best"] == ["1", "5"]
    drawn = figures.figures_of(runs, layout)
    assert {drawing.title for drawing in drawn.of("parameters")} >= {
        "Sensitivity to algo.rs.alpha", "Sensitivity to local.epochs",
    }  # fmt: skip


@pytest.mark.parametrize("alpha_is", ["in one scene", "in no finished run"])
def test_a_setting_need_not_be_in_each_scene_nor_in_a_finished_run(tmp_path, alpha_is):
    one_scene = alpha_is == "in one scene"
    write_run(tmp_path, "fedavg", 0, epochs=1)
    write_run(tmp_path, "map", 0, epochs=1)
    for alpha in (0.1, 0.9):
        write_run(tmp_path, "fedrs", 0, alpha=alpha, epochs=5 if one_scene else 1, done=one_scene)
    assert main([str(tmp_path)]) == 0
    assert Layout.of(load(tmp_path)).methods == ("algo", "algo.rs.alpha")


def test_settings_that_follow_from_others_are_not_named(tmp_path):
    for algo, epochs in (("fedavg", 1), ("map", 5)):
        write_run(tmp_path, algo, 0, epochs=epochs)
    assert Layout.of(load(tmp_path)).methods == ("algo",)
    assert Layout.of(load(tmp_path)).scenes == ("local.epochs",)


def test_copies_of_a_run_are_told_apart_by_their_folders(tmp_path, no_figures):
    for name in ("one", "two"):
        write_run(tmp_path / name, "fedavg", 0)
    assert Layout.of(load(tmp_path)).scenes == ("run",)
    assert main([str(tmp_path)]) == 0


# ---------------------------------------------------------------- kinds of figures
def test_a_new_kind_appears_by_itself(runs, monkeypatch):
    def novelty(runs, *, by=("algo",)):
        """Something new."""
        return KINDS["curves"](runs, {"by": by})

    monkeypatch.setattr(figures, "KINDS", {**KINDS, "novelty": Kind(novelty)})
    drawn = figures.figures_of(runs, Layout.of(runs))
    assert sum("Something new." in drawing.description for drawing in drawn.of(figures.OTHERS)) == 1


def test_every_kind_is_drawn_or_refused_with_a_reason(runs):
    drawn = figures.figures_of(runs, Layout.of(runs))
    counts = {section: len(drawn.of(section)) for section in ("results", "clients", "cost", "missing", "parameters")}
    assert counts == {"results": 3, "clients": 6, "cost": 2, "missing": 2, "parameters": 0}
    reasons = dict(reason.split(": ", 1) for reason in drawn.refused)
    assert reasons["Rare classes over rounds"].startswith("missing.rare: no finished run has such a metric.")
    assert reasons[KINDS["heatmap"].about.rstrip(".")] == "it needs 2 varied settings with numbers."


def test_all_colours_of_methods_can_be_seen_on_dark():
    def light(colour: str) -> float:
        parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
        return sum(
            w * (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4)
            for w, p in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
        )

    surface = light("#1a1e24")
    for colour in (*style.PALETTE, style.INK, style.FAINT):
        assert (light(style.DARK.get(colour, colour)) + 0.05) / (surface + 0.05) > 3, colour


# ---------------------------------------------------------------- size
def test_thirty_long_runs_stay_below_two_megabytes(tmp_path, monkeypatch):
    monkeypatch.setattr(made, "ROUNDS", 130)
    for seed in range(2):
        for epochs in (1, 5, 10):
            write_run(tmp_path, "fedavg", seed, epochs=epochs)
            for alpha in (0.1, 0.3, 0.5, 0.9):
                write_run(tmp_path, "fedrs", seed, alpha=alpha, epochs=epochs)
    assert main([str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    assert 900_000 < len(text.encode()) < MAX_BYTES
    curve = embedded(text)["data"]["d0"]
    assert curve["rows"] == 15 * figures.MAX_ROUNDS
    rounds = rows_of(curve["columns"]["round"], curve["rows"])
    assert (min(rounds), max(rounds)) == (1, 130)


# ---------------------------------------------------------------- what went wrong
def test_of_many_methods_the_leading_ones_are_drawn(tmp_path, monkeypatch):
    """More lines than colours and dashes would be refused, and the report of a large sweep would have no curve."""
    names = ["fedavg", *(f"method{i:02}" for i in range(style.MAX_LINES))]
    monkeypatch.setattr(made, "BASE", {name: 0.3 + 0.01 * i for i, name in enumerate(names)})
    for name in names:
        write_run(tmp_path, name, 0)
    runs = load(tmp_path)
    drawn = figures.figures_of(runs, Layout.of(runs)).drawn
    curve = next(drawing for drawing in drawn["results"] if drawing.title == "Aggregation over rounds")
    best = [f"method{i:02}" for i in range(style.MAX_LINES - figures.LEADING + 1, style.MAX_LINES)]
    assert f"Shown: {', '.join(['fedavg', *best])}." in curve.description
    assert curve.caption.endswith("Of 17 methods fedavg and those that are best in either goal.")
    assert [drawing.title for drawing in drawn["clients"] if "gains" in drawing.title]


def test_failures_are_told(tmp_path, no_figures):
    write_run(tmp_path, "fedavg", 0)
    stopped = write_run(tmp_path, "map", 0, done=False)
    (stopped.path / "error.txt").write_text("ClientError: client 3 has <diverged>\nTraceback: …\n")
    damaged = write_run(tmp_path, "fedrs", 0)
    (damaged.path / "metrics.jsonl").write_text("")
    assert main([str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    rows = {row[0]: row for row in Page(text).tables["2 runs not finished, and in no table or figure"][1:]}
    assert rows["map-0-None-5"][1] == "failed"
    assert "client 3 has <diverged>" in rows["map-0-None-5"][3]
    assert rows["fedrs-0-None-5"][1] == "damaged"
    assert "metrics.jsonl is damaged" in rows["fedrs-0-None-5"][3]
    assert "1 done, 1 " in text
    assert [row[0] for row in Page(text).tables["Accuracy of both goals"][2:]] == ["fedavg"]


def test_clients_that_were_left_out_are_counted(tmp_path, no_figures):
    run = write_run(tmp_path, "fedavg", 0, done=False)
    run.append_rows(
        "clients.csv", ["round", "client", "status", "n", "after"], [{"round": 9, "client": 1, "status": "dropped out"}]
    )
    main([str(tmp_path)])
    text = (tmp_path / "report.html").read_text()
    assert Page(text).tables["Clients that were left out of a round"][1:] == [["fedavg-0-None-5", "dropped out", "1"]]
    assert "vegaEmbed=" not in text  # no figure, no script for figures


# ---------------------------------------------------------------- published
def test_the_committed_results(tmp_path):
    if not RESULTS.is_dir():
        pytest.skip("multirun/results is not part of a source distribution")
    assert main([str(RESULTS), f"to={tmp_path / 'r.html'}"]) == 0
    page = Page((tmp_path / "r.html").read_text())
    head, *rows = page.tables["Cells by verdict"]
    verdicts = next(dict(zip(head, row, strict=True)) for row in rows if row[0] == "fedrs/table4")
    assert verdicts[head[1]] == "The networks: parameters of the feature extractor, feature width, layers"
    assert verdicts["reduced"] == "3"
    (caption,) = (caption for caption in page.tables if caption.startswith("fedrs/table4"))
    row = next(row for row in page.tables[caption] if row[:2] == ["charlstm", "parameters"])
    assert row[-1] == "equal"
    assert "799368" in row


def test_an_entry_and_a_folder_whose_runs_it_knows(tmp_path, monkeypatch, no_figures):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "multirun" / "map" / "fmnist_mlpnet", "fedavg", 0).path.name
    row = {
        "entry": "map/table1", "setting": "fmnist/mlpnet", "method": "FedAvg", "metric": "aggregation", "seed": 0,
        "tuning": "", "value": 71.25, "status": "done", "reduced": "", "rounds": 4, "rule": "last round", "run": run,
        "command": "python -m fedexp algo=fedavg", "seconds": 1.0, "partition": "", "versions": "fedexp 0.1.0",
        "error": "",
    }  # fmt: skip
    noted = tmp_path / "multirun" / ".reproduced" / "map" / "table1.csv"
    noted.parent.mkdir(parents=True)
    noted.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    assert main(["map/table1"]) == 0
    assert main(["multirun/map"]) == 0
    for file in ("multirun/map/table1.html", "multirun/map/report.html"):
        page = Page(Path(file).read_text())
        (caption,) = (caption for caption in page.tables if caption.startswith("map/table1: ours"))
        head, ours = page.tables[caption]
        assert dict(zip(head, ours, strict=True))["ours"] == "71.2"
        assert "Accuracy of both goals" in page.tables  # of the run itself


# ---------------------------------------------------------------- wrong input
@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 2, "FOLDER"),
        (["nowhere"], 2, "nowhere is neither a folder nor a table or figure of a paper"),
        (["map/tabel1"], 2, "there is no such table or figure. Did you mean 'map/table1'"),
        (["map/table1"], 2, "map/table1: there are no results yet"),
        (["map/fig1"], 2, "There is nothing to compare"),
        (["empty"], 1, "There is no run and no sweep in empty"),
        (["empty", "to=report.pdf"], 2, "to=report.pdf has to end in .html"),
        (["empty", "to=nowhere/report.html"], 2, "there is no directory nowhere"),
        (["empty", "form=x"], 2, "form is not known here"),
    ],
)
def test_wrong_requests_are_answered_and_leave_nothing(tmp_path, monkeypatch, capsys, argv, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(argv) == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["pandas", "altair", "vl_convert", "jinja2"])
def test_without_the_extra_it_says_what_to_install(name, folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    assert main([str(folder), f"to={tmp_path / 'x.html'}"]) == 2
    assert 'pip install "fedexp[report]"' in capsys.readouterr().err
