"""Every command of the README and of the guide runs, shortened where it is long."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from contextlib import ExitStack, closing
from itertools import product, takewhile
from pathlib import Path
from uuid import uuid4

import pytest

import fedexp
from fedexp.config.compose import composed_hydra
from fedexp.config.packages import GROUP
from tests.conftest import SMALL
from tests.documents import ALL, GUIDE, PAGES, README, ROOT
from tests.unit.report.made import write_run

PYTHON = re.findall(r"```python\n(.*?)```", ALL, re.DOTALL)
EXAMPLE = dict(re.findall(r"```\w+\n# (my_conf/\S+)\n(.*?)```", ALL, re.DOTALL))  # its files, by path
ON_A_CLUSTER = re.findall(r"^RAY_\S+ ray start [^#\n]*|^python -m fedexp executor=ray .*", ALL, re.MULTILINE)


def run(arguments: list[str], cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FEDEXP_DATA": str(cwd / "nothing"), "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(arguments, cwd=cwd, env=environment, capture_output=True, text=True, timeout=280)


def write_example(folder: Path) -> None:
    """Writes the README's folder of a user's own."""
    for name, text in EXAMPLE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commands() -> list[str]:
    blocks = re.findall(r"```bash\n(.*?)```", ALL, re.DOTALL)
    table = re.findall(r"`(python -m fedexp[^`]*)`", ALL)
    lines = [line for block in blocks for line in block.splitlines()]
    known = dict.fromkeys(line.rpartition(" && ")[2] for line in [*lines, *table])
    known = {c: None for c in known if "tracker=[tensorboard" not in c}  # see the dashboards, below
    return [c for c in known if re.match(r"python -m fedexp( |$)", c) and c not in ON_A_CLUSTER]


def test_readme_shows_the_commands_we_know():
    assert "python -m fedexp" in commands()
    assert any("-m algo=fedavg,fedrs,map" in c for c in commands())
    assert any("data=cifar10" in c for c in commands())


SET_UP = ["pip install -e . && python -m fedexp", 'pip install -e ".[dev]" && pytest']


@pytest.fixture
def programs(tmp_path):
    """A folder with programs that only note how they were called; those that are named in ``broken`` then fail."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (tmp_path / "broken").touch()
    for name in ("python3", "python", "pip", "pytest"):
        path = folder / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n! grep -qx {name} {tmp_path}/broken\n')
        path.chmod(0o755)
    return folder


@pytest.mark.parametrize(("broken", "until"), [("", 4), ("pip", 1), ("python", 2), ("pytest", 4)])
def test_continuous_integration_runs_the_two_commands_of_the_readme(programs, tmp_path, broken, until):
    (tmp_path / "broken").write_text(broken)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    script = [str(ROOT / ".ci" / "run")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, cwd=tmp_path)
    first, *calls = (tmp_path / "calls").read_text().splitlines()
    assert re.fullmatch(rf"python3 -m venv {tmp_path}/\S+", first)
    assert not Path(first.split()[-1]).exists()
    assert calls == ["pip install -e .", "python -m fedexp", "pip install -e .[dev]", "pytest"][:until]
    assert (done.returncode == 0) == (not broken), done.stderr
    assert [line.removeprefix("+ ") for line in done.stdout.splitlines()] == SET_UP[: 1 + until // 3]


@pytest.mark.parametrize("command", commands())
def test_command_of_the_readme(command, tmp_path):
    _, *arguments = shlex.split(command)
    if "--config-dir" in arguments:
        write_example(tmp_path)
    short = [] if "--help" in arguments else ["rounds=1", "evaluate.all_clients=false"]
    if "-m" in arguments[2:]:
        arguments = [a.replace("0.1,0.5,1", "0.1,1").replace("seed=0,1,2", "seed=0,1") for a in arguments]
    arguments = [a for a in arguments if not a.startswith("rounds=")]
    done = run([sys.executable, *arguments, *short], tmp_path)
    if "data=cifar10" in arguments:  # no network here: the error must say which file and what to do
        if done.returncode == 0:
            return
        assert "DataError" in done.stderr
        assert "data.root" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stdout + done.stderr


def test_commands_of_the_readme_for_two_machines(tmp_path):
    """Both of them this one: a node each, that ends with us, in a folder of its own, whose name has to be short."""
    pytest.importorskip("ray", reason="executor=ray is an extra: pip install 'fedexp[ray]'")
    head, other, work = ON_A_CLUSTER
    small = ["--block", "--num-cpus=1", "--object-store-memory=100000000"]
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ExitStack() as nodes,
    ):
        environment = {"RAY_TMPDIR": folder, "RAY_AUTH_TOKEN": uuid4().hex, "PYTHONPATH": str(ROOT)}
        port = free_port()
        for command in (head, other):
            words = shlex.split(command.replace("6379", port).replace("<first machine>", "127.0.0.1"))
            node = subprocess.Popen(
                ["env", *words, *small], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            nodes.callback(node.wait)
            nodes.callback(node.terminate)
            said = [*takewhile(lambda line: "Ray runtime started." not in line, node.stdout)]
            assert node.poll() is None, "".join(said)
        settings = [s for s in SMALL if not s.startswith("executor")]
        done = run([sys.executable, *shlex.split(work)[1:], *settings], tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    (there,) = (tmp_path / "multirun" / "main").iterdir()
    here = fedexp.run([*SMALL, f"out={tmp_path}"]).path
    assert (there / "weights.csv").read_text() == (here / "weights.csv").read_text()


def free_port() -> str:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.parametrize("command", ["list", "show partition=dirichlet png=map.png"])
def test_data_command_of_the_readme(command, tmp_path):
    assert f"python -m fedexp.data {command}" in ALL
    done = run([sys.executable, "-m", "fedexp.data", *command.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "digits" in done.stdout
    assert (tmp_path / "map.png").exists() == ("png" in command)


def headings(text: str) -> dict[str, str]:
    """The anchor of each section of a page, by its heading."""
    found = re.findall(r"^## (.+)", text, re.MULTILINE)
    return {heading: re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("path", [path for path, text in PAGES.items() if headings(text)], ids=lambda path: path.stem)
def test_page_begins_with_links_to_its_sections(path):
    anchors = headings(PAGES[path])
    contents = next(line for line in PAGES[path].splitlines() if line.startswith("[") and "](#" in line)
    assert contents == " · ".join(f"[{heading}](#{anchor})" for heading, anchor in anchors.items())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_of_a_page_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGES[path]):
        there = (path.parent / target).resolve() if target else path
        if "multirun" in target and not there.exists():
            continue  # a source distribution has no runs
        assert there.exists(), target
        assert not anchor or anchor in headings(PAGES[there]).values(), f"{target}#{anchor}"


def test_readme_links_to_every_page_of_the_guide():
    linked = set(re.findall(r"\]\(\.github/guide/(\w+)\.md", README.partition("\n## Guide\n")[2]))
    assert linked == set(GUIDE)


def test_doctor_of_the_readme(tmp_path):
    assert "`python -m fedexp.doctor`" in README
    done = run([sys.executable, "-m", "fedexp.doctor"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


REPORTS = re.findall(r"^python -m (fedexp\.(?:runs (?:table|plot)|report) .*)", ALL, re.MULTILINE)


@pytest.mark.parametrize("command", REPORTS)
def test_tables_and_figures_of_the_readme(command, tmp_path):
    pytest.importorskip("altair", reason='needs pip install "fedexp[report]"')
    for algo, seed in product(("fedavg", "map"), (0, 1)):
        write_run(tmp_path / "multirun" / "main", algo, seed)
    for name in re.findall("multirun/(results|example)", command):
        if not (ROOT / "multirun" / name).is_dir():
            pytest.skip(f"multirun/{name} is not part of a source distribution")
        shutil.copytree(ROOT / "multirun" / name, tmp_path / "multirun" / name)
    done = run([sys.executable, "-m", *shlex.split(command)], tmp_path)
    assert done.returncode == 0, done.stderr
    for name in re.findall(r"to=(\S+)", command):
        assert (tmp_path / name).stat().st_size > 300
    assert "map" in done.stdout or "to=" in command or f"{command.split()[-1]}/report.html" in done.stdout


def test_readme_has_tables_and_figures():
    assert {command.split()[1] for command in REPORTS} == {
        "table", "plot", "multirun/main", "multirun/example", "multirun/results",
    }  # fmt: skip
    assert len(REPORTS) >= 10


def test_runs_commands_of_the_readme(tmp_path):
    assert "python -m fedexp.runs status multirun" in README
    status = [sys.executable, "-m", "fedexp.runs", "status", "multirun"]
    assert "multirun is not a folder" in run(status, tmp_path).stderr
    fedexp.run([*SMALL, "rounds=1", f"out={tmp_path / 'multirun'}"])
    done = run(status, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 run: 1 done\n")
    (path,) = (tmp_path / "multirun" / "main").iterdir()
    done = run([sys.executable, "-m", "fedexp.runs", "diff", str(path), str(path)], tmp_path)
    assert (done.returncode, done.stdout) == (0, "All numbers are equal.\n")


@pytest.mark.skipif(not (ROOT / "multirun/example").is_dir(), reason="a source distribution has no example of runs")
def test_two_runs_of_the_example_are_compared_as_the_readme_says():
    (command,) = re.findall(r"^python -m (fedexp\.runs diff .*)", README, re.MULTILINE)
    done = run([sys.executable, "-m", *command.split()], ROOT)
    assert done.returncode == 1, done.stderr
    assert "seed" in done.stdout or "algo" in done.stdout


@pytest.mark.parametrize("command", re.findall(r"^python -m fedexp\.reproduce .*", ALL, re.MULTILINE))
def test_reproduce_command_of_the_readme(command, tmp_path):
    done = run([sys.executable, *shlex.split(command)[1:]], tmp_path)
    if "rounds=" in command:  # no network here: it must say which data are missing and what to do
        assert "2 runs to do, about " in done.stdout
        assert "data.root" in done.stdout or done.returncode == 0, done.stdout
    else:
        assert done.returncode == int("status" in command), done.stderr
    assert "map/table1" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", re.findall(r"`python -m fedexp\.reproduce (claims|page|export [^`]*)`", ALL))
def test_reproduce_command_in_a_line_of_the_readme(command, tmp_path):
    (tmp_path / "multirun" / "results").mkdir(parents=True)
    done = run([sys.executable, "-m", "fedexp.reproduce", *command.split()], tmp_path)
    assert done.returncode == int(command.startswith("export")), done.stderr  # there is nothing to export
    assert done.stdout


def test_launcher_of_the_readme_is_there():
    """SLURM itself is not: the launcher is composed, and its file named."""
    (arguments,) = re.findall(r"`-m (hydra/launcher=slurm [^`]*) …`", ALL)
    assert composed_hydra(arguments.split()).launcher.partition == "gpu"
    assert (ROOT / "conf" / "hydra" / "launcher" / "slurm.yaml").exists()


def test_fetch_of_the_readme_says_what_to_do_without_a_network(tmp_path):
    assert "python -m fedexp.data fetch fmnist" in ALL  # fetching itself is tested with a package of our own
    done = run([sys.executable, "-m", "fedexp.data", "fetch", "fminst"], tmp_path)
    assert done.returncode != 0
    assert "fmnist" in done.stderr


def test_python_example_of_the_readme(tmp_path):
    example = next(code for code in PYTHON if "fedexp.run" in code)
    done = run([sys.executable, "-c", example.replace("rounds=5", "rounds=1")], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "multirun" in done.stdout
    assert (tmp_path / "multirun" / "main").is_dir()


def test_a_package_of_the_readme_declares_what_is_looked_for():
    (declared,) = re.findall(r"```toml\n(.*?)```", ALL, re.DOTALL)
    assert tomllib.loads(declared)["project"]["entry-points"] == {GROUP: {"my_package": "my_package.conf"}}


def test_dashboards_of_the_readme(tmp_path):
    """Offline, since there is no key here."""
    for package in ("wandb_workspaces", "tensorboard"):
        pytest.importorskip(package, reason='needs pip install "fedexp[dashboard,tensorboard]"')
    first, *others = re.findall(r"^python -m fedexp(?: 'tracker|\.track |\.dashboard ).*", ALL, re.MULTILINE)
    assert [command.split()[2] for command in others] == ["fedexp.track", "fedexp.dashboard"]
    alone = {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_API_KEY": ""}
    for command in (f"{first} evaluate.all_clients=false", *others):
        done = run([sys.executable, *shlex.split(command)[1:]], tmp_path, **alone)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "dashboard.json").exists()
    (path,) = (tmp_path / "multirun" / "main").iterdir()
    assert len(list(path.glob("wandb/offline-run-*"))) == len(list(path.glob("tensorboard/*"))) == 1
