"""What the user reads, at the widths of real terminals."""

from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from rich.console import Console

from fedexp.display import Display, SilentDisplay, choose, shown, summary
from fedexp.display.live import LiveDisplay
from fedexp.display.plain import PlainDisplay
from fedexp.display.progress import Progress
from fedexp.terminal.numbers import clock, count, duration, human_bytes, percent, sparkline


def record(round_: int, *, aggregation: float | None = 0.861, personalization: float | None = 0.904) -> dict[str, Any]:
    blocks = {"aggregation": aggregation, "personalization": personalization}
    return {"round": round_} | {kind: {"accuracy": value} for kind, value in blocks.items() if value is not None}


RESULT: dict[str, Any] = {
    "status": "finished",
    "run": "3f2a91c0",
    "path": "multirun/default/3f2a91c0",
    "rounds": 50,
    "aggregation": {"last": 0.861, "best": 0.869, "mean": 0.859, "std": 0.003, "window": 5},
    "personalization": {"last": 0.904, "best": 0.91, "mean": 0.902, "std": 0.002, "window": 5, "all_clients": 0.897},
    "bytes": {"up": 12_345_678, "down": 45_612_345},
    "seconds": {"elapsed": 62.0, "train": 49.6, "evaluate": 6.2, "aggregate": 0.1},
}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def page(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def text(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def written(console: Console) -> list[int]:
    return [int(line.split("/")[0].split()[1]) for line in text(console) if line.startswith("round")]


def play(display: Display, clock: Clock, *, rounds: int, seconds: float, done: int = 0) -> None:
    with shown(display, "title", rounds=rounds, done=done):
        for round_ in range(done + 1, rounds + 1):
            clock.now += seconds
            display.record(record(round_))


def test_plain_lines_read_as_promised() -> None:
    console, clock = page(), Clock()
    display = PlainDisplay(console, now=clock)
    display.start("map · digits", 50, 0)
    clock.now = 12.0
    display.record(record(12))
    clock.now = 50.0
    display.record(record(50, aggregation=None))
    assert text(console) == [
        "map · digits: 50 rounds",
        "round 12/50  aggregation 86.1 %  personalization 90.4 %  about 00:38 left",
        "round 50/50  personalization 90.4 %  took 00:50",
    ]


def test_a_fast_run_writes_every_tenth_and_the_ends() -> None:
    console, clock = page(), Clock()
    play(PlainDisplay(console, now=clock), clock, rounds=50, seconds=0.01)
    assert written(console) == [1, 6, 11, 16, 21, 26, 31, 36, 41, 46, 50]


def test_a_slow_run_writes_at_most_a_line_per_pause() -> None:
    console, clock = page(), Clock()
    play(PlainDisplay(console, now=clock, pause=5.0), clock, rounds=1000, seconds=2.0)
    assert written(console) == [*range(1, 1000, 3), 1000]


def test_a_resumed_run_does_not_repeat_its_history() -> None:
    console, clock = page(), Clock()
    display = PlainDisplay(console, now=clock)
    display.start("title", 4, 2)
    display.record(record(1))
    display.record(record(2))
    clock.now = 3.0
    display.record(record(3))
    assert text(console)[0] == "title: continues after round 2 of 4"
    assert text(console)[1:] == ["round 3/4  aggregation 86.1 %  personalization 90.4 %  about 00:03 left"]


def test_nothing_of_a_run_is_left_to_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would free the run's tensors while Python ends, which aborts the process."""
    display, others = PlainDisplay(Console(file=io.StringIO())), threading.active_count()
    monkeypatch.setattr(display, "look", lambda: time.sleep(0.2))
    monkeypatch.setattr(display._ended, "wait", lambda _: display._ended.is_set())
    display.start("title", 2, 0)
    assert threading.active_count() == others + 1
    display.stop()
    assert threading.active_count() == others


def test_a_signal_before_the_other_thread_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        signal.raise_signal(signal.SIGINT)
        start(thread)

    display, others = PlainDisplay(Console(file=io.StringIO())), threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        display.start("title", 2, 0)
    display.stop()
    assert threading.active_count() == others


def test_plain_lines_in_a_long_round_and_after_the_last_one() -> None:
    console, clock, share = page(), Clock(), 0.0
    display = PlainDisplay(console, now=clock, patience=30.0)
    display.start("title", 1, 0, final=2.0, underway=lambda: share)
    display.cohort(1, 4, 400)
    clock.now = 10.0
    display.client(10.0, 100)
    clock.now, share = 39.0, 0.5
    display.look()  # the last line is 39 seconds old
    clock.now = 40.0
    display.look()  # and now it is new
    share = 0.0
    display.record(record(1))
    display.after("all clients once more", 2.0, 8, 800)
    clock.now = 80.0
    display.client(40.0, 100)
    display.stop()
    assert text(console) == [
        "title: 1 round",
        "round 1/1: 1.5 of 4 clients done, about 10:09 left",
        "round 1/1  aggregation 86.1 %  personalization 90.4 %  took 00:40",
        "after the last round: all clients once more, about 01:20 left",
        "all clients once more: 1.0 of 8 clients done, about 04:40 left",
    ]


def test_a_line_comes_also_while_nothing_is_heard() -> None:
    console = page()
    display = PlainDisplay(console, patience=0.0)
    with shown(display, "title", rounds=3, done=0):
        display.cohort(1, 2, 10)
        for _ in range(100):
            if len(text(console)) > 1:
                break
            time.sleep(0.1)
    assert text(console)[1] == "round 1/3: 0.0 of 2 clients done"


def test_notes_are_taken_literally_and_not_wrapped() -> None:
    console = page(20)
    PlainDisplay(console).note("see [bold]/a/very/long/path/of/a/run[/bold] please")
    assert text(console) == ["see [bold]/a/very/long/path/of/a/run[/bold] please"]


def test_time_left_counts_clients_of_the_running_round() -> None:
    clock = Clock()
    progress = Progress(10, 4, clock=clock)
    assert progress.left() is None
    progress.cohort(5, 4, 400)
    clock.now = 6.0
    progress.client(1.0, 200)  # the largest comes first, and is half of the round
    assert progress.done == 4.5
    assert progress.left() == pytest.approx(6.0 / 0.5 * 5.5)
    clock.now = 7.0
    progress.client(1.0, 100)
    assert progress.done == 4.75
    assert progress.left() == pytest.approx(1.0 / 0.25 * 5.25)  # workers' starts are behind us
    clock.now = 8.0
    progress.record(record(5))
    assert progress.done == 5
    assert progress.left() == pytest.approx(2.0 / 0.5 * 5)


def test_clients_that_are_being_trained_count_as_far_as_they_are() -> None:
    clock, share = Clock(), 0.0
    progress = Progress(2, 0, underway=lambda: share, clock=clock)
    progress.cohort(1, 2, 100)
    assert not progress.ended
    share = 0.5
    assert (progress.running, progress.done) == (0.5, 0.25)
    share = 5.0  # whatever a worker says
    assert (progress.running, progress.done) == (2.0, 1.0)


def test_time_left_includes_what_comes_after_the_last_round() -> None:
    clock = Clock()
    progress = Progress(2, 0, final=3.0, clock=clock)
    for round_ in (1, 2):
        progress.cohort(round_, 1, 10)
        clock.now += 1.0
        progress.client(1.0, 10)
        progress.record(record(round_))
    assert progress.left() == pytest.approx(3.0)
    assert not progress.ended
    progress.after("all clients", 2.0, 2, 20)
    for _ in range(2):
        clock.now += 1.0
        progress.client(1.0, 10)
    progress.after("fine-tuning", 1.0, 1, 10)
    assert progress.left() == pytest.approx(1.0)
    clock.now += 1.0
    progress.client(1.0, 10)
    assert progress.ended


def test_time_left_forgets_the_start_of_workers() -> None:
    clock = Clock()
    progress = Progress(10, 0, clock=clock)
    progress.cohort(1, 100, 1000)
    clock.now = 60.0
    progress.client(1.0, 10)
    clock.now = 160.0  # workers have been started meanwhile
    for _ in range(90):
        clock.now += 2.0
        progress.client(2.0, 10)
    assert progress.left() == pytest.approx(2.0 * (1000 - 91), rel=0.02)


def test_time_left_forgets_what_came_before_the_first_client() -> None:
    clock = Clock()
    progress = Progress(10, 0, clock=clock)
    clock.now = 50.0
    progress.record(record(1))
    assert progress.left() == pytest.approx(450.0)
    progress.cohort(2, 1, 10)
    clock.now = 52.0
    progress.record(record(2))
    clock.now = 54.0
    progress.record(record(3))
    assert progress.left() == pytest.approx(2.0 * 7)


def test_best_is_the_earliest_of_equals_and_skips_what_is_not_a_number() -> None:
    progress = Progress(5, 0)
    for round_, value in enumerate([0.1, 0.7, 0.7, float("nan")], start=1):
        progress.record(record(round_, aggregation=value))
    assert progress.best("aggregation") == (2, 0.7)


def live(width: int) -> list[str]:
    console = page(width)
    display = LiveDisplay(console)
    display._title = "map · digits"
    display._progress = Progress(50, 0, clock=Clock())
    for round_ in range(1, 13):
        display.record(record(round_, aggregation=round_ / 20 if round_ < 12 else 0.5, personalization=None))
    display.cohort(13, 10, 1000)
    display.client(0.12, 100)
    display.client(0.14, 100)
    console.print(display.frame())
    return text(console)


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_block(width: int) -> None:
    title, rounds, clients, aggregation = live(width)
    assert title == "map · digits"
    assert rounds.startswith("rounds")
    assert "12/50  about 00:00 left" in rounds
    assert "2/10  0.13 s each" in clients
    assert "50.0 %  best 55.0 %, round 11" in aggregation
    assert "▁" in aggregation
    assert "▇" in aggregation


def test_both_lines_of_the_live_block_share_their_axis() -> None:
    _, rounds, _, aggregation = live(120)
    bar = sum(mark in "━╸" for mark in rounds)
    course = sum(mark in "▁▂▃▄▅▆▇" for mark in aggregation)
    assert bar > 8
    assert abs(course - bar) <= 1
    assert rounds.index("━") == aggregation.index("▁")


@pytest.mark.parametrize("width", [20, 40, 60])
def test_narrow_terminals_do_not_break(width: int) -> None:
    assert len(live(width)) == 4
    console = page(width)
    summary(RESULT, console)
    assert all(len(line) <= width for line in text(console))


SCRIPT = """
from rich.console import Console
from fedexp.display import choose, shown
display = choose(Console())
with shown(display, "title", rounds=3, done=0):
    display.stage("reading")
    display.start("title", 3, 0)
    display.cohort(1, 2, 20)
    display.note("a note")
    raise SystemExit(7)
"""


def test_the_terminal_is_restored_after_an_exception() -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    seen = os.read(ours, 100_000).decode()
    os.close(ours)
    assert done.returncode == 7
    assert "\x1b[?25l" in seen  # hidden cursor
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")  # and back
    assert "a note" in seen


def test_stop_without_start_and_twice() -> None:
    display = LiveDisplay(Console(file=io.StringIO(), force_terminal=True))
    display.stop()
    display.start("title", 2, 0)
    display.stop()
    display.stop()


def test_the_console_decides() -> None:
    assert isinstance(choose(Console(file=io.StringIO())), PlainDisplay)
    assert isinstance(choose(Console(file=io.StringIO(), force_terminal=True, force_interactive=True)), LiveDisplay)
    assert isinstance(choose(Console(quiet=True)), SilentDisplay)


def test_silence() -> None:
    display = SilentDisplay()
    with shown(display, "title", rounds=2, done=0):
        display.stage("reading")
        display.cohort(1, 3, 30)
        display.client(0.1, 10)
        display.after("all clients", 1.0, 2, 20)
        display.record(record(1))
        display.note("nothing")


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary(width: int) -> None:
    console = page(width)
    summary(RESULT, console)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in text(console) if line}
    assert rows["accuracy"] == "last best mean of last 5 all clients"
    assert rows["aggregation"] == "86.1 % 86.9 % 85.9 ± 0.3 % –"
    assert rows["personalization"] == "90.4 % 91.0 % 90.2 ± 0.2 % 89.7 %"
    assert rows["sent"] == "12.3 MB up · 45.6 MB down"
    assert rows["time"] == "01:02 · train 80 % · evaluate 10 % · other 10 %"
    assert rows["files"] == "multirun/default/3f2a91c0"


def test_the_summary_has_what_the_papers_protocol_adds_and_what_belongs_beside_the_numbers() -> None:
    console, said = page(120), "algo: FedGELA's paper has weighting=samples; this run has weighting=uniform."
    goals = {kind: {**RESULT[kind], name: 0.5} for kind, name in (("aggregation", "GA"), ("personalization", "PA"))}
    summary({**RESULT, **goals, "caveats": [said]}, console)
    lines = [" ".join(line.split()) for line in text(console)]
    assert "paper's GA 50.0 % · PA 50.0 %" in lines
    assert f"note {said}" in lines


def test_the_summary_has_missing_classes_where_they_were_measured() -> None:
    console = page(120)
    summary({**RESULT, "missing": {"accuracy": 0.5, "owned": 0.9, "absent": 0.125, "forgotten": 0.3}}, console)
    assert "classes owned 90.0 % · absent 12.5 % · forgotten 30.0 %" in [
        " ".join(line.split()) for line in text(console)
    ]


@pytest.mark.parametrize(
    ("gone", "why"), [("aggregation", "no global model"), ("personalization", "no personal models")]
)
def test_absent_accuracies_are_dashes_with_a_reason(gone: str, why: str) -> None:
    console = page()
    summary({key: value for key, value in RESULT.items() if key != gone}, console)
    (line,) = [line for line in text(console) if line.startswith(gone)]
    assert line.split(maxsplit=5) == [gone, "–", "–", "–", "–", why]


def test_workers_side_by_side_never_exceed_a_hundred_percent() -> None:
    console = page()
    summary({"seconds": {"elapsed": 10.0, "train": 30.0, "evaluate": 10.0}, "workers": 4}, console)
    assert any("00:10; 00:40 of work by 4 workers · train 75 % · evaluate 25 %" in line for line in text(console))


def test_before_the_first_client_the_live_block_says_how_long_it_has_been_going_on() -> None:
    console, clock = page(), Clock()
    display = LiveDisplay(console)
    display._progress = Progress(50, 0, clock=clock)
    display.cohort(1, 4, 40)
    clock.now = 25.0
    console.print(display.frame())
    assert any("0/50  00:25 so far" in line for line in text(console))
    display.client(140.0, 10)
    console.print(display.frame())
    assert any("1/4  02:20 each" in line for line in text(console))


def test_figures() -> None:
    assert percent(None) == "–"
    assert percent(0.8614) == "86.1 %"
    assert percent(0.5, 0.0123) == "50.0 ± 1.2 %"
    assert [human_bytes(n) for n in (0, 999, 1000, 999_600, 12_345_678, 123_456_789_000)] == [
        "0 B",
        "999 B",
        "1.00 kB",
        "1.00 MB",
        "12.3 MB",
        "123 GB",
    ]
    assert [clock(s) for s in (0, 31.4, 59.6, 3723)] == ["00:00", "00:31", "01:00", "1:02:03"]
    assert [duration(s) for s in (0.0123, 1.44, 59.4, 140.0)] == ["0.012 s", "1.4 s", "59 s", "02:20"]
    assert [count(n, "round") for n in (0, 1, 2000)] == ["0 rounds", "1 round", "2,000 rounds"]


def test_sparklines() -> None:
    assert sparkline([(1, 0.1), (2, 0.2), (3, 0.7)], 6, width=12) == "▁▁▂▂▇▇"
    assert sparkline([(5, 0.3), (6, 0.3)], 6, width=12) == "        ▁▁▁▁"
    assert sparkline([(i, i / 50) for i in range(1, 51)], 50, width=7) == "▁▂▃▄▅▆▇"
    assert sparkline([], 6, width=12) == ""
    assert sparkline([(1, 0.1)], 500, width=10) == "▁"


def test_heavy_packages_stay_out_of_the_imports() -> None:
    code = (
        "import sys, fedexp.display, fedexp.sweep\n"
        "heavy = {'torch', 'lightning', 'wandb', 'numpy'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
