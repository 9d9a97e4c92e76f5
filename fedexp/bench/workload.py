"""What is timed: how many clients, samples and epochs, as settings of a run. Free of torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedexp.data.catalog import CATALOG
from fedexp.data.list_command import ROOT

CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Equal clients with samples drawn at random, none held out; SGD as in ``conf/optim/sgd.yaml``.

    Attributes:
        title: What it is, in a few words.
        algo: The method; the raw loop must have it too (``WORKERS`` in ``raw_player.py``).
        model: The network's overrides.
        size: Height and width of an image.
        channels: Of an image that is generated.
        clients: Clients in the federation.
        samples: Training samples of each.
        per_round: Clients in a round.
        epochs: Passes over a client's samples in a round.
        batch_size: Samples of a step.
        images: Training and test images per class.
        row: Rounds that are played in a row before it is somebody else's turn.
        trials: Turns of each raw setting, of which the fastest counts; then the better half plays as many again.
        real: Whether the images are Fashion-MNIST, where it is to be had; otherwise they are generated.
    """

    title: str
    model: tuple[str, ...]
    size: int
    clients: int
    samples: int
    per_round: int
    epochs: int
    batch_size: int = 64
    images: tuple[int, int] = (6000, 1000)
    channels: int = 1
    algo: str = "fedavg"
    row: int = 1
    trials: int = 4
    real: bool = True

    @property
    def generated(self) -> bool:
        """Whether the images are generated, by choice or for want of files."""
        root = Path(os.environ.get("FEDEXP_DATA") or ROOT).expanduser()
        return not (self.real and CATALOG["fmnist"].find(root))

    @property
    def steps(self) -> int:
        """Optimizer steps in a round."""
        return self.per_round * self.epochs * -(-self.samples // self.batch_size)

    @property
    def facts(self) -> dict[str, Any]:
        """The workload for the record."""
        data = "generated images" if self.generated else "Fashion-MNIST"
        return {"title": self.title, "data": data, "steps": self.steps, "overrides": self.overrides(Path("FOLDER"))}

    def overrides(self, folder: Path) -> list[str]:
        """The settings of a run whose partition and files are in ``folder``."""
        data = ["data=fmnist", "data.download=false"]
        if self.generated:
            train, test = self.images
            data = ["data=synthetic", f"data.samples={train}", f"data.test={test}", f"data.channels={self.channels}"]
        return [
            *(f"algo={self.algo}", *data, f"data.size={self.size}", *self.model, "optim=sgd"),
            *("partition=file", f"partition.path={folder / 'partition.json'}"),
            *(f"cohort.clients={self.clients}", f"cohort.fraction={self.per_round / self.clients:g}"),
            *(f"local.epochs={self.epochs}", f"local.batch_size={self.batch_size}", "local.clip=null", "rounds=1000"),
            *("evaluate.all_clients=false", "evaluate.missing=false"),  # the raw loop tests the server's model alone
            *("tracker=none", f"out={folder / 'runs'}"),
        ]

    def deal(self, folder: Path) -> None:
        """Writes the partition: so many random samples for each client, and no tests of their own."""
        total = self.images[0] * CLASSES
        drawn = np.random.default_rng(0).permutation(total)[: self.clients * self.samples]
        rows = np.sort(drawn.reshape(self.clients, self.samples), axis=1)
        (folder / "partition.json").write_text(json.dumps({"clients": [{"train": r.tolist()} for r in rows]}))


LENET = ("model=lenet", "model.bias=true")  # 61,706 parameters on 32×32, as with 28×28 images padded by 2
MLP = ("model=mlpnet", "model.hidden=[512,512]", "model.bias=true")

LENET_CLIENTS = Workload(
    title="LeNet-5, 100 clients × 480 samples, 10 a round, 5 epochs", size=32, model=LENET, clients=100, samples=480,
    per_round=10, epochs=5,
)  # fmt: skip

WORKLOADS: Mapping[str, Workload] = {
    "W0": Workload(
        title="a trial of the benchmark itself: tiny images, tiny perceptron", size=8,
        model=("model=mlpnet", "model.hidden=[16,16]", "model.bias=true"), clients=6, samples=40, per_round=3, epochs=2,
        batch_size=16, images=(30, 20), row=2, real=False,
    ),
    "W1": LENET_CLIENTS,
    "W2": Workload(
        title="perceptron 784-512-512-10, 100 clients × 480 samples, 10 a round, 5 epochs", size=28, model=MLP,
        clients=100, samples=480, per_round=10, epochs=5, row=2,
    ),
    "W3": Workload(
        title="perceptron 784-512-512-10, 1,000 clients × 48 samples, 100 a round, 1 epoch", size=28, model=MLP,
        clients=1000, samples=48, per_round=100, epochs=1, row=6,
    ),
    "W4": Workload(
        title="perceptron 64-32-10 on 8 × 8 images, 100 clients × 64 samples, all in a round, 1 epoch", size=8,
        model=("model=mlpnet", "model.hidden=[32]", "model.bias=true"), clients=100, samples=64, per_round=100,
        epochs=1, batch_size=8, images=(700, 100), row=6, real=False,
    ),
    "W5": Workload(
        title="ResNet-20 with batch normalisation on 3 × 32 × 32 images, 10 clients × 320 samples, all in a round, 1 "
        "epoch of batches of 32", size=32, channels=3, model=("model=resnet20", "model.bias=true"), clients=10,
        samples=320, per_round=10, epochs=1, batch_size=32, images=(320, 100), real=False, trials=1,
    ),
    "W6": replace(
        LENET_CLIENTS, algo="map",
        title="W1 with MAP, which the raw loop takes by hand too: LeNet-5, 100 clients × 480 samples, 10 a round",
    ),
}  # fmt: skip
