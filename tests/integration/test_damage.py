"""Every file of a run, damaged in every way, before, while and after it is written: it is noticed, or does no harm.

``FEDEXP_DAMAGE=1 pytest tests/integration/test_damage.py -s`` tries all of them, and says how many were noticed.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import fedexp
from fedexp.config.compose import composed
from fedexp.config.identity import run_path
from fedexp.core.seeding import derive
from fedexp.engine import Engine
from fedexp.errors import ClientError, FedexpError
from fedexp.runs.__main__ import main
from fedexp.runs.directory import RunDir
from tests.integration.test_resume import diverge_in, numbers

RUN = (
    "algo=scaffold", "cohort.clients=6", "cohort.fraction=0.5", "rounds=4", "local.epochs=1", "local.batch_size=64",
    "model.hidden=[8]", "every.checkpoint=1", "loop=fabric", "executor=serial", "evaluate.all_clients=false",
    "out=runs",
)  # fmt: skip
ALL = bool(os.environ.get("FEDEXP_DAMAGE"))
TABLES = ("metrics.jsonl", "clients.csv", "ledger.csv", "weights.csv")
SETTINGS = ("config.yaml", "plan.json")
POINTERS = ("checkpoint/latest.json", "checkpoint/previous.json")
TENSORS = ("checkpoint/server-*", "checkpoint/client-*")
FILES = {
    "finished": (*SETTINGS, *TABLES, "model.safetensors", "result.json"),
    "partial": (*SETTINGS, *TABLES, *POINTERS, *TENSORS, "error.txt"),
    "running": (*SETTINGS, *TABLES, *POINTERS, *TENSORS),
}
SECRET = "years of work"  # noqa: S105


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _link(path: Path) -> None:
    path.symlink_to(path.rename(path.parents[2] / f"mine-{path.name}"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine").write_text(SECRET)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda p: p.write_bytes(b""),
    "truncated": lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2]),
    "flipped": _flip,
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"1\n"),
    "folder": _folder,
    "link": _link,
    "list": lambda p: p.write_bytes(b"[]"),
    "object": lambda p: p.write_bytes(b"{}"),
    "latin": lambda p: p.write_bytes("Größe\n".encode("latin-1")),
    "deep": lambda p: p.write_bytes(b"[" * 50_000),
    "huge": lambda p: p.write_bytes(b'{"round": ' + b"9" * 5000 + b"}"),
}


def cases(state: str) -> Iterator[tuple[str, str]]:
    """Files and damages: all of them, or every damage to some files and every file in some way."""
    pairs = [(file, damage) for file in FILES[state] for damage in DAMAGES]
    if ALL:
        yield from pairs
        return
    draw = random.Random(derive(0, "damage", state))  # noqa: S311
    files = draw.sample(FILES[state], len(FILES[state])) * 2
    yield from zip(files, DAMAGES, strict=False)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A finished run and a partial one, to be copied and damaged."""
    home = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        for state in ("finished", "partial"):
            (home / state).mkdir()
            patch.chdir(home / state)
            if state == "finished":
                fedexp.run(RUN)
            else:
                with pytest.MonkeyPatch.context() as fault:
                    diverge_in(fault, 4)
                    with pytest.raises(ClientError):
                        fedexp.run(RUN)
    return home


class Case:
    """One damaged run, and what is said of it."""

    def __init__(self, folder: Path, caplog, capsys) -> None:
        self.path = folder / run_path(composed(RUN))
        self._caplog, self._capsys = caplog, capsys

    def damage(self, file: str, how: str) -> Path:
        path = max(self.path.glob(file))
        DAMAGES[how](path)
        self._others = {p: p.read_bytes() for p in Path.cwd().rglob("mine*") if p.is_file()}
        return path

    def demand_that_others_files_are_as_they_were(self) -> None:
        assert all(p.read_bytes() == data for p, data in self._others.items()), "a file of someone else was changed"

    def tool(self, *arguments: str) -> tuple[int, str]:
        code = main(arguments)
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def run(self) -> str:
        """What is said when the command is given; nothing if it ends as it should."""
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING):
            try:
                fedexp.run(RUN)
            except FedexpError as error:
                return f"{error} {self._caplog.text}"
        return self._caplog.text


@pytest.fixture
def tried(home, tmp_path, monkeypatch, caplog, capsys):
    """Tries all cases of a state, and says which went by unnoticed."""

    def each(state: str, look: Callable[[Case, str, str, Path], object]) -> None:
        found: dict[str, str] = {}
        for number, (file, how) in enumerate(cases(state)):
            folder = tmp_path / str(number)
            shutil.copytree(home / ("finished" if state == "finished" else "partial"), folder)
            monkeypatch.chdir(folder)
            case = Case(folder, caplog, capsys)
            try:
                look(case, file, how, home)
                case.demand_that_others_files_are_as_they_were()
            except AssertionError as error:
                found[f"{file} {how}"] = f"unnoticed: {str(error).splitlines()[0] if str(error) else ''}"
            except Exception as error:
                found[f"{file} {how}"] = f"{type(error).__name__}: {error}"[:100]
        with capsys.disabled():
            print(f"\n{state}: {number + 1} damaged, {number + 1 - len(found)} noticed or without harm")  # noqa: T201
        assert not found

    return each


def quiet(home: Path) -> dict[str, object]:
    return numbers(home / "finished" / run_path(composed(RUN)))


def test_a_finished_run_that_was_damaged_is_noticed(tried):
    def look(case, file, how, home):
        damaged = case.damage(file, how).name
        code, said = case.tool("status", "runs")
        assert code == 1, "status: all is well"
        assert damaged in said or (damaged, how) == ("result.json", "deleted"), f"status does not name it: {said}"
        other = home / "finished" / case.path.relative_to(Path.cwd())
        code, said = case.tool("diff", str(case.path), str(other))
        assert code != 0, "diff: all is equal"
        assert damaged in said, f"diff does not name it: {said}"
        if (damaged, how) != ("result.json", "deleted"):  # which is begun again
            assert damaged in case.run(), "run: finished already"

    tried("finished", look)


def test_a_partial_run_that_was_damaged_names_it_or_ends_as_if_it_were_whole(tried):
    def look(case, file, how, home):
        damaged = case.damage(file, how)
        assert case.tool("status", "runs")[0] == 1
        other = home / "partial" / case.path.relative_to(Path.cwd())
        case.tool("diff", str(case.path), str(other))
        said = case.run()
        if how in ("folder", "link") and "error" not in file:
            assert damaged.name in said, "not refused"
        if RunDir(case.path).result() is not None:
            assert numbers(case.path) == quiet(home), "other numbers"
        else:
            assert damaged.name in said, "neither finished nor named"

    tried("partial", look)


def test_a_run_that_is_damaged_while_it_goes_on_names_it_or_ends_as_if_it_were_whole(tried):
    def look(case, file, how, home):
        send = Engine.send

        def harmed(self, t):
            if t == 3:
                case.damage(file, how)
            return send(self, t)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "send", harmed)
            said = case.run()
        if RunDir(case.path).result() is None:
            assert Path(file).name.strip("*") in said, f"neither finished nor named: {said}"
        else:
            assert numbers(case.path) == quiet(home), "other numbers"
            assert case.tool("status", "runs")[0] == 0

    tried("running", look)
