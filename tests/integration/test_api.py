"""``fedexp.run`` and the files of a run, as README and guide promise them."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors import safe_open
from safetensors.torch import load_file

import fedexp
from fedexp.build import build
from fedexp.client.network import load
from fedexp.config.identity import run_id, run_path
from fedexp.core.state import digest
from fedexp.errors import ConfigError
from fedexp.evaluate.missing import MEASURES


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of MAP, which measures both goals."""
    out = tmp_path_factory.mktemp("api")
    overrides = [
        "algo=map", "cohort.clients=6", "cohort.fraction=0.5", "rounds=5", "local.epochs=1", "model.hidden=[16,16]",
        "loop=fabric", "every.evaluate=2", f"out={out}", "name=mine",
    ]  # fmt: skip
    return overrides, fedexp.run(overrides)


def test_the_result(finished):
    _, result = finished
    assert result.status == "finished"
    assert result.path.parent.name == "mine"
    assert result.summary == json.loads((result.path / "result.json").read_text())
    for block in (result.aggregation, result.personalization):
        assert {"last", "best", "mean", "std", "window"} <= set(block)
        assert 0 <= block["last"] <= block["best"] <= 1
    assert len(result.personalization["all_clients_detail"]["clients"]) == 6
    assert [r["round"] for r in result.records] == [2, 4, 5]  # every second round, and the last


def test_a_whole_configuration_gives_the_same_run(finished):
    overrides, result = finished
    config = fedexp.config.compose.composed(overrides)
    again = fedexp.run(config)
    assert again.status == "skipped"
    assert again.summary == result.summary
    assert (again.aggregation, again.records) == (result.aggregation, result.records)
    config["rounds"] = 1
    other = fedexp.run(config)
    assert other.status == "finished"
    assert other.path != result.path
    assert other.summary["rounds"] == 1


def test_result_json(finished):
    _, result = finished
    summary = result.summary
    assert set(summary) == {
        "status", "run", "title", "path", "rounds", "aggregation", "personalization", "missing", "bytes", "seconds",
        "digests", "versions", "commit", "checksums", "workers", "final", "caveats",
    }  # fmt: skip
    assert summary["status"] == "finished"
    assert summary["title"] == "map · digits · incomplete · mlpnet · seed 0"
    assert set(summary["digests"]) == {"model", "clients", "partition", "data"}
    assert set(summary["versions"]) == {"fedexp", "python", "torch", "lightning", "numpy"}
    assert {"setup", "train", "evaluate", "final"} <= set(summary["seconds"])
    assert all(v >= 0 for v in summary["seconds"].values())
    last = [r["aggregation"]["accuracy"] for r in result.records]
    assert result.aggregation["last"] == last[-1]
    assert result.aggregation["mean"] == pytest.approx(np.mean(last))


def test_config_yaml_runs_again(finished):
    _, result = finished
    config = yaml.safe_load((result.path / "config.yaml").read_text())
    assert run_path(config) == result.path
    assert fedexp.run(config).status == "skipped"


def test_plan_json(finished):
    _, result = finished
    plan = json.loads((result.path / "plan.json").read_text())
    assert {"components", "phases", "slots", "messages", "bytes_per_round", "partition", "notes"} <= set(plan)
    assert set(plan["components"]) == {"rs", "hpm"}


def test_metrics_jsonl(finished):
    _, result = finished
    lines = (result.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == result.records
    for record in result.records:
        assert set(record) == {"round", "aggregation", "personalization", "missing", "terms", "bytes", "seconds"}
        assert len(record["aggregation"]["per_class"]) == 10
        assert {"accuracy", "before", "owned", "std", "worst_decile", "per_class", "clients"} <= set(
            record["personalization"]
        )
        assert len(record["personalization"]["clients"]) == 3
        assert "local/ce" in record["terms"]
        assert all(math.isfinite(v) for v in record["terms"].values())
    ups = [r["bytes"]["up"] for r in result.records]
    assert ups[1] == 2 * ups[0]
    assert ups[2] == result.summary["bytes"]["up"]


def test_clients_csv(finished):
    _, result = finished
    rows = list(csv.DictReader((result.path / "clients.csv").open()))
    assert len(rows) == 5 * 3  # every round, tested or not
    assert list(rows[0]) == [
        "round", "client", "status", "n", "classes", "tested", "before", "personal_before", "after", "unadapted",
        "globally", "owned", *(f"missing/{name}" for name in MEASURES), "loss/local/ce", "loss/personal/ce",
        "loss/personal/hpm",
    ]  # fmt: skip
    for row in rows:
        assert 2 <= int(row["classes"]) <= 10
        assert 0 <= float(row["after"]) <= 1
        assert row["globally"] == ""
        assert (row["missing/accuracy"] != "") == (row["round"] in ("2", "4", "5"))  # where a test is due
    fourth = [float(r["after"]) for r in rows if r["round"] == "4"]
    assert fourth == result.records[1]["personalization"]["clients"]


def test_ledger_csv(finished):
    _, result = finished
    rows = list(csv.DictReader((result.path / "ledger.csv").open()))
    assert list(rows[0]) == ["round", "client", "direction", "name", "bytes"]
    for direction in ("up", "down"):
        total = sum(int(r["bytes"]) for r in rows if r["direction"] == direction)
        assert total == result.summary["bytes"][direction]
    assert {(r["round"], r["client"]) for r in rows} == {
        (r["round"], r["client"]) for r in csv.DictReader((result.path / "clients.csv").open())
    }


def test_model_safetensors_is_the_servers_model(finished):
    overrides, result = finished
    model = load_file(result.path / "model.safetensors")
    assert digest({"model": model}) == result.summary["digests"]["model"]
    with safe_open(result.path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"run": result.summary["run"], "title": result.summary["title"]}
    experiment = build(fedexp.config.compose.composed(overrides))
    load(experiment.net, model)
    test = experiment.data.test
    accuracy = (experiment.net.eval()(test.x).argmax(1) == test.y).double().mean().item()
    assert accuracy == pytest.approx(result.aggregation["last"])


def test_there_is_nothing_else(finished):
    _, result = finished
    assert sorted(p.name for p in result.path.iterdir()) == [
        ".lock", "clients.csv", "config.yaml", "ledger.csv", "metrics.jsonl", "model.safetensors", "plan.json",
        "result.json", "weights.csv",
    ]  # fmt: skip


# ---------------------------------------------------------------- other ways to call it
def test_a_plan(small, tmp_path):
    console = Console(file=io.StringIO(), width=140)
    result = fedexp.run(small("plan=true"), console=console)
    assert result.status == "planned"
    assert result.summary["cohort"]["per_round"] == 3
    assert "none (FedAvg)" in console.file.getvalue()
    assert not result.path.exists()
    assert list(tmp_path.iterdir()) == []


def test_quiet_by_default(small, capfd):
    fedexp.run(small("rounds=1"))
    assert capfd.readouterr() == ("", "")


def test_a_wrong_setting_is_a_config_error_and_leaves_nothing(small, tmp_path):
    for wrong in ("roundz=3", "algo=fedrs"):
        with pytest.raises(ConfigError):
            fedexp.run(small(wrong, *(["algo.rs.alpha=2"] if wrong == "algo=fedrs" else [])))
    assert list(tmp_path.rglob("*")) == []


def test_a_wrong_configuration_is_refused_as_a_wrong_override_is(small, tmp_path):
    with pytest.raises(ConfigError, match=r"cohort, .* are missing"):
        fedexp.run({"rounds": 3})
    config = fedexp.config.compose.composed(small())
    for group, key, value, why in (
        ("optim", "lr", float("nan"), r"optim\.lr must be a finite number"),
        ("model", "_target_", "os.system", r"model\._target_: 'os\.system' is neither"),
        ("cohort", "size", 3, r"cohort\.size is not a setting"),
    ):
        with pytest.raises(ConfigError, match=why):
            fedexp.run({**config, group: {**config[group], key: value}})
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_of_ones_own_configurations(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "algo").mkdir(parents=True)
    (tmp_path / "own" / "algo" / "mine.yaml").write_text("defaults: [fedrs, _self_]\nrs: {alpha: 0.25}\n")
    assert fedexp.run(small("algo=mine", "plan=true"), config_dir="own").status == "planned"
    with pytest.raises(ConfigError, match=r"algo=mein: there is no such choice\. Did you mean 'mine'"):
        fedexp.run(small("algo=mein"), config_dir="own")
    with pytest.raises(ConfigError, match="--config-dir nothing: there is no such folder"):
        fedexp.run(small(), config_dir="nothing")


def test_the_same_settings_give_the_same_numbers(small, tmp_path):
    results = [fedexp.run(small("rounds=2", f"out={tmp_path / name}")) for name in ("one", "two")]
    assert results[0].path.name == results[1].path.name == run_id(fedexp.config.compose.composed(small("rounds=2")))
    assert results[0].summary["digests"] == results[1].summary["digests"]
    assert [r["aggregation"] for r in results[0].records] == [r["aggregation"] for r in results[1].records]
    other = fedexp.run(small("rounds=2", "seed=1"))
    assert other.summary["digests"]["model"] != results[0].summary["digests"]["model"]
    assert other.summary["digests"]["partition"] != results[0].summary["digests"]["partition"]


def test_the_loops_give_the_same_numbers(small):
    digests = [fedexp.run(small("rounds=2", "algo=map", f"loop={x}")).summary["digests"] for x in ("trainer", "fabric")]
    assert digests[0] == digests[1]


def test_a_method_without_a_server_model_has_no_aggregation(small):
    result = fedexp.run(small("rounds=1", "algo=fedrema"))
    assert result.aggregation is None
    assert result.personalization is not None
    assert "aggregation" not in result.records[0]


def test_without_held_out_samples_there_is_no_personalization(small):
    result = fedexp.run(small("rounds=1", "partition.test=none"))
    assert result.personalization is None
    assert result.aggregation is not None


def test_the_package_says_what_it_has():
    assert fedexp.__version__
    assert set(fedexp.__all__) == {"Result", "__version__", "load", "run"}
    with pytest.raises(AttributeError, match="nothing"):
        fedexp.nothing  # noqa: B018


def test_a_run_that_another_process_has_finished_meanwhile_is_not_done_again(configured, monkeypatch):
    config = configured("rounds=2")

    def slow(given, stage):
        experiment = build(given, stage)
        monkeypatch.undo()
        fedexp.run(config)
        return experiment

    monkeypatch.setattr("fedexp.build.build", slow)
    assert fedexp.run(config).status == "skipped"
    assert len(fedexp.run(config).records) == 2
