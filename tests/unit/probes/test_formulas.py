"""The numbers of each probe on cases with a known answer, and against the formulas written again in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.seeding import torch_rng
from fedexp.core.state import Layout
from fedexp.core.views import Facts
from fedexp.data.circles import OPTIMAL
from fedexp.probes.base import ClientView, Log, Place, ServerView
from fedexp.probes.class_means import ClassMeansProbe
from fedexp.probes.classifier import ClassifierProbe, shape
from fedexp.probes.cost import CostProbe
from fedexp.probes.forces import ForcesProbe, forces
from fedexp.probes.proxies import ProxiesProbe, directions, on_sphere, principal_axes, relative_spread
from fedexp.probes.relativity import RelativityProbe, relativity
from fedexp.probes.spectrum import SpectrumProbe, eigenvalues
from fedexp.probes.vectors import class_vectors, etf_angle, mean_angle, mean_distance, vector_name
from tests import helpers
from tests.helpers import array, info

W = "classifier.weight"


def facts(vectors: Tensor, **changes: Any) -> Facts:
    """A run whose network is its class vectors."""
    names = (W,)
    parts = {"all": frozenset(names), "features": frozenset[str](), "classifier": frozenset(names)}
    known: dict[str, Any] = {
        "seed": 0, "rounds": 10, "fraction": 1.0, "n_clients": 3, "n_classes": len(vectors),
        "feature_dim": vectors.shape[1], "layout": Layout(names, (), parts, shared=names),
        "counts": torch.ones(3, len(vectors)), "initial": {W: vectors},
    }  # fmt: skip
    return Facts(**{**known, **changes})


def client(
    received: Tensor, trained: Tensor, counts: list[float], samples: tuple[Tensor, Tensor] | None = None, **more: Any
) -> ClientView:
    """A client with these class vectors; its features are those of ``samples``, whatever the weights."""
    some = samples or (torch.zeros(0, received.shape[1]), torch.zeros(0, dtype=torch.long))
    given: Callable[[Any, int], tuple[Tensor, Tensor]] = lambda _, __: some  # noqa: E731
    known: dict[str, Any] = {
        "round": 0, "info": info(counts), "facts": facts(received), "received": {W: received}, "ends": {},
        "uploaded": {W: trained}, "personal": {W: trained}, "seconds": 1.5, "sizes": {},
        "classify": lambda tree, h: h @ tree[W].T, "own": given, "test": given,
    }  # fmt: skip
    return ClientView(**{**known, **more})


def server(after: Tensor, samples: tuple[Tensor, Tensor] | None = None, **more: Any) -> ServerView:
    known: dict[str, Any] = {
        "round": 0, "facts": facts(after), "cohort": (0, 1), "before": {W: after}, "after": {W: after},
        "arrays": {}, "test": lambda _, __: samples,
    }  # fmt: skip
    return ServerView(**{**known, **more})


def values(log: Log, name: str) -> dict[str, Any]:
    (found,) = [row["values"] for row in log.rows if row["name"] == name]
    return found


def seen_by(probe: Any, view: ClientView | ServerView) -> Log:
    log = Log()
    (probe.client if isinstance(view, ClientView) else probe.server)(view, log)
    return log


def step_of(h: Tensor, y: Tensor, weight: Tensor, counts: list[float], phase: str = "local") -> Any:
    """A step after its backward pass."""
    weight = weight.clone().requires_grad_()
    step = helpers.step(h, y, n_classes=len(weight), counts=counts, phase=phase)
    step.frame.facts, step.frame.weights = facts(weight.detach()), {W: weight}
    step.z = h @ weight.T
    F.cross_entropy(step.z, y).backward()
    step.z = step.z.detach()
    return step


def a_batch(n: int = 12, classes: int = 4, width: int = 3, missing: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    h = torch.randn(n, width, generator=made)
    y = torch.randint(classes - missing, (n,), generator=made)
    return h, y, torch.randn(classes, width, generator=made)


# ---------------------------------------------------------------- vectors
def test_angles_of_a_simplex_frame_are_those_of_the_etf():
    for classes in (2, 3, 10):
        frame = torch.eye(classes, dtype=torch.float64) - 1 / classes
        assert mean_angle(frame).item() == pytest.approx(etf_angle(classes))
    assert etf_angle(10) == pytest.approx(96.38, abs=0.005)
    assert etf_angle(1) is None


def test_angles_of_known_vectors():
    square = torch.tensor([[1.0, 0], [0, 2], [-3, 0]], dtype=torch.float64)
    assert mean_angle(square).item() == pytest.approx((90 + 90 + 180) / 3)
    assert mean_angle(square[:1], square[1:]).item() == pytest.approx(135)
    assert mean_angle(torch.cat([square, torch.zeros(1, 2, dtype=torch.float64)])).item() == pytest.approx(120)
    assert math.isnan(mean_angle(square[:1]).item())


def test_distances_count_pairs_of_a_vector_with_itself():
    two = torch.tensor([[0.0, 0], [3, 4]], dtype=torch.float64)
    assert mean_distance(two, two).item() == pytest.approx(2 * 5 / 4)
    assert mean_distance(two[:1], two[1:]).item() == pytest.approx(5)


def test_class_vectors_are_the_rows_of_the_last_layer():
    names = ("classifier.0.weight", "classifier.0.bias", "classifier.2.weight", "classifier.2.bias")
    tree = {n: torch.zeros(s) for n, s in zip(names, [(5, 3), (5,), (4, 5), (4,)], strict=True)}
    parts = {"classifier": frozenset(names)}
    known = facts(torch.zeros(4, 3), layout=Layout(names, (), parts, shared=names), initial=tree)
    assert vector_name(known) == "classifier.2.weight"
    assert class_vectors(known, {}).shape == (4, 5)
    assert vector_name(facts(torch.zeros(4, 3), n_classes=7)) is None


# ---------------------------------------------------------------- classifier
def test_shape_of_observed_and_missing_classes():
    vectors = torch.tensor([[3.0, 0], [0, 1], [0, -1]], dtype=torch.float64)
    found = {k: v.tolist() for k, v in shape(vectors, torch.tensor([True, False, False])).items()}
    assert found["norm_observed"] == 3
    assert found["norm_missing"] == 1
    assert found["distance_oo"] == 0
    assert found["distance_om"] == pytest.approx(math.sqrt(10))
    assert found["distance_mm"] == pytest.approx(2 * 2 / 4)
    assert found["angle_missing"] == pytest.approx(180)
    assert found["angle_between"] == pytest.approx(90)
    assert math.isnan(found["angle_observed"])  # of one class there is none


def test_gradients_are_summed_over_an_epoch_and_over_the_round():
    h, y, weight = a_batch()
    log, probe, counts = Log(), ClassifierProbe(), [1.0, 1, 1, 0]
    other = weight + 1
    for number, current in enumerate((weight, other)):
        probe.step(step_of(h, y, current, counts), Place(number, number, ends_epoch=True), log)
    probe.client(client(weight, other, counts, ends={"local": {W: other}}), log)

    def gradient(w: Tensor) -> Any:
        z = array(h) @ array(w).T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return (p - np.eye(4)[y.numpy()]).T @ array(h) / len(y), p[np.arange(len(y)), y.numpy()].mean()

    (first, seen), (second, later) = gradient(weight), gradient(other)
    epochs = [row for row in log.rows if row["name"] == "epoch"]
    assert [row["epoch"] for row in epochs] == [0, 1]
    norms = np.linalg.norm(first, axis=1)
    assert epochs[0]["values"]["gradients"] == pytest.approx(norms, rel=1e-5)
    assert epochs[0]["values"]["gradient_missing"] == pytest.approx(norms[3], rel=1e-5)
    assert epochs[0]["values"]["gradient_observed"] == pytest.approx(norms[:3].mean(), rel=1e-5)
    assert epochs[0]["values"]["norms"] == pytest.approx(np.linalg.norm(array(other), axis=1))  # after the update
    whole = np.linalg.norm(first + second, axis=1)
    assert values(log, "steps")["gradients"] == pytest.approx(whole, rel=1e-5)
    assert values(log, "steps")["probability"] == pytest.approx((seen + later) / 2, rel=1e-5)
    assert values(log, "trained")["norms"] == pytest.approx(np.linalg.norm(array(other), axis=1))


def test_a_classifier_that_is_not_trained_has_no_gradient_left_from_others():
    h, y, weight = a_batch()
    log, counts = Log(), [1.0, 1, 1, 0]
    step = step_of(h, y, weight, counts)
    assert step.weights[W].grad is not None
    step.weights[W].requires_grad_(requires_grad=False)
    ClassifierProbe().step(step, Place(0, 0, ends_epoch=True), log)
    assert "steps" not in log.kept


def test_the_aggregated_model_is_seen_with_the_classes_of_each_client():
    vectors = torch.tensor([[1.0, 0], [0, 1], [-1, 0]])
    counts = torch.tensor([[1.0, 1, 0], [1, 0, 1], [1, 1, 1]])
    log = seen_by(ClassifierProbe(), server(vectors, facts=facts(vectors, counts=counts), cohort=(0, 1)))
    assert values(log, "aggregated")["angle_observed"] == pytest.approx((90 + 180) / 2)
    assert "angle_missing" not in values(log, "aggregated")  # each lacks one class alone


# ---------------------------------------------------------------- class means
def test_class_means_of_a_frame_have_its_angle():
    frame = torch.eye(4, dtype=torch.float64) - 0.25
    h = torch.cat([frame + 0.3, frame - 0.3])  # whose means are the frame, away from the origin or not
    y = torch.arange(4).repeat(2)
    log = seen_by(ClassMeansProbe(), server(torch.zeros(4, 4), (h, y)))
    assert values(log, "aggregated")["angle"] == pytest.approx(etf_angle(4))
    moved = seen_by(ClassMeansProbe(), server(torch.zeros(4, 4), (h + 5, y)))
    assert values(moved, "aggregated")["angle"] < 20
    assert values(moved, "aggregated")["centred"] == pytest.approx(etf_angle(4))
    assert values(moved, "aggregated")["etf"] == pytest.approx(math.degrees(math.acos(-1 / 3)))


def test_a_client_has_the_angles_of_its_own_classes():
    h = torch.tensor([[1.0, 0], [0, 1], [-1, 0]])
    log = seen_by(ClassMeansProbe(), client(h, h, [1, 0, 1], (h, torch.arange(3))))
    assert values(log, "trained")["angle"] == pytest.approx(180)
    assert "missing" not in values(log, "trained")


# ---------------------------------------------------------------- proxies
def test_proxies_write_features_vectors_and_their_directions():
    vectors = torch.tensor([[1.0, 0], [0, 2], [-1, -1], [0, 0]])
    h, y = torch.tensor([[1.0, 1], [2, 2], [5, 5]]), torch.tensor([0, 0, 1])
    log = seen_by(ProxiesProbe(), client(vectors, 3 * vectors, [1, 1, 0, 0], (h, y)))
    assert values(log, "trained")["directions"] == pytest.approx([0, 90, -135, None])
    assert values(log, "received")["norm_observed"] == pytest.approx(1.5)
    assert values(log, "trained")["norm_missing"] == pytest.approx(3 * math.sqrt(2) / 2)
    assert torch.equal(log.arrays["trained/vectors"], 3 * vectors)
    assert torch.equal(log.arrays["received/features"], h)
    assert torch.equal(log.arrays["received/labels"], y)


def test_spread_is_small_where_classes_are_compact():
    h, y = torch.tensor([[0.0, 1], [0, -1], [10, 1], [10, -1]]), torch.tensor([3, 3, 7, 7])
    assert relative_spread(h, y).item() == pytest.approx(1 / 5)


def test_a_projection_keeps_the_two_largest_directions():
    made = torch.Generator().manual_seed(0)
    h = torch.randn(200, 5, generator=made, dtype=torch.float64) * torch.tensor([1.0, 9, 0.1, 4, 0.1])
    axes = principal_axes(h)
    assert axes.abs().argmax(0).tolist() == [1, 3]
    assert (axes.T @ axes).numpy() == pytest.approx(np.eye(2), abs=1e-9)
    wide = torch.randn(4, 5, generator=made)
    log = seen_by(ProxiesProbe(project="pca"), client(wide, wide, [1, 1, 1, 0], (h, torch.arange(200) % 4)))
    assert log.arrays["trained/features"].shape == (200, 2)
    assert array(log.arrays["trained/vectors"]) == pytest.approx(array(wide) @ axes.numpy(), abs=1e-5)


def test_places_on_the_sphere():
    points = torch.tensor([[2.0, 0, 0], [0, 3, 0], [-1, 0, 0], [0, 0, 5], [1, 1, -math.sqrt(2)]], dtype=torch.float64)
    found = on_sphere(points)
    assert found[:, 1].tolist() == pytest.approx([0, 0, 0, 90, -45])
    assert found[[0, 1, 2, 4], 0].tolist() == pytest.approx([0, 90, 180, 45])
    log = seen_by(
        ProxiesProbe(project="sphere"), client(points[:3], points[:3], [1, 1, 0], (points, torch.arange(5) % 3))
    )
    assert array(log.arrays["trained/features"]) == pytest.approx(array(found), abs=1e-4)
    assert values(log, "trained")["norm_observed"] == pytest.approx(2.5)  # of the vectors themselves
    assert "directions" not in values(log, "trained")  # which are angles in the plane
    (why,) = ProxiesProbe(project="sphere").problems(facts(torch.zeros(4, 2)))
    assert "this network has 2 of them, not three" in why


def test_proxies_need_two_features():
    (why,) = ProxiesProbe().problems(facts(torch.zeros(4, 84)))
    assert "this network has 84 of them" in why
    assert "model=lenet2d" in why
    assert [*ProxiesProbe(project="pca").problems(facts(torch.zeros(4, 84)))] == []
    assert [*ProxiesProbe().problems(facts(torch.zeros(4, 2)))] == []


def test_directions_go_round_the_circle():
    circle = torch.tensor([[1.0, 0], [1, 1], [0, 1], [-1, 0], [0, -1]])
    assert directions(circle).tolist() == pytest.approx([0, 45, 90, 180, -90])


def test_the_class_vectors_that_fedmr_prints_are_45_degrees_apart():
    """Figure 2: the rows of the average of three clients, and of what the paper calls optimal for all data."""
    averaged = torch.tensor([[1 / 3, 0], [-1 / 6, (math.sqrt(3) + 2) / 6]])
    assert directions(averaged).tolist() == pytest.approx([0, 105], abs=0.01)
    assert directions(torch.tensor(OPTIMAL)).tolist() == pytest.approx([0, 105 + 45, -105 - 45], abs=0.01)


# ---------------------------------------------------------------- spectrum
def test_a_class_on_a_line_has_one_eigenvalue():
    line = torch.linspace(-1, 1, 9)[:, None] * torch.tensor([[1.0, 2, -3, 5]])
    found = eigenvalues(line, 50)
    assert found[0].item() == pytest.approx(4)  # all four features are perfectly correlated
    assert found[1:].abs().max().item() == pytest.approx(0, abs=1e-9)
    assert len(found) == 50
    log = seen_by(SpectrumProbe(), client(torch.zeros(1, 4), torch.zeros(1, 4), [1], (line, torch.zeros(9).long())))
    assert values(log, "trained")["variance"] == pytest.approx(((4 - 4 / 50) ** 2 + 49 * (4 / 50) ** 2) / 128)
    assert values(log, "trained")["variance"] == pytest.approx(values(log, "trained")["pooled"])


def test_eigenvalues_are_those_of_the_correlations():
    made = np.random.default_rng(0)
    for n, width in ((30, 6), (5, 40)):
        h = made.normal(size=(n, width)) @ made.normal(size=(width, width)) + 7
        expected = np.sort(np.linalg.eigvalsh(np.corrcoef(h, rowvar=False)))[::-1][:20]
        found = array(eigenvalues(torch.from_numpy(h), 20))
        assert found == pytest.approx(np.pad(expected, (0, 20 - len(expected))), abs=1e-8)


def test_the_variance_is_the_mean_over_classes_and_a_constant_feature_has_no_part():
    made = np.random.default_rng(3)
    h, y = made.normal(size=(20, 3)), np.arange(20) % 3
    h[:, 1] = 0.7
    y[0] = 4  # a class of one sample
    probe = SpectrumProbe(batch=20, top=5)
    log = seen_by(probe, server(torch.zeros(5, 3), (torch.from_numpy(h), torch.from_numpy(y))))

    def variance(rows: Any) -> float:
        top = np.pad(np.sort(np.linalg.eigvalsh(np.corrcoef(rows[:, [0, 2]], rowvar=False)))[::-1], (0, 3))
        return float(((top - top.mean()) ** 2).sum() / 20)

    assert values(log, "aggregated")["variance"] == pytest.approx(np.mean([variance(h[y == c]) for c in (0, 1, 2)]))
    assert values(log, "aggregated")["pooled"] == pytest.approx(variance(h))
    assert log.arrays["aggregated/eigenvalues"].shape == (3, 5)


# ---------------------------------------------------------------- relativity
def test_equal_classifiers_are_alike_and_others_are_not():
    heads = [torch.tensor([[9.0, 0], [0, 0]]), torch.tensor([[9.0, 0], [0, 0]]), torch.tensor([[0.0, 0], [99, 0]])]
    probe, counts = RelativityProbe(draws=3), torch.tensor([[5.0, 0], [5, 1], [0, 5]])
    logs = [seen_by(probe, client(h, h, [1, 1])) for h in heads]
    arrays = {number: log.arrays for number, log in enumerate(logs)}
    known = facts(heads[0], counts=counts)
    log = seen_by(probe, server(heads[0], cohort=(0, 1, 2), arrays=arrays, facts=known))
    matrix = array(log.arrays["matrix"])
    assert np.diag(matrix) == pytest.approx(1)
    assert matrix[0, 1] == pytest.approx(1)
    assert matrix[0, 2] == pytest.approx(matrix[1, 2])
    assert matrix[0, 2] < 0.8
    assert values(log, "matrix")["contrast"] == pytest.approx(1 - matrix[0, 2])
    assert log.arrays["clients"].tolist() == [0, 1, 2]


def test_relativity_is_the_cosine_of_softened_answers():
    made = np.random.default_rng(0)
    heads = made.normal(size=(3, 4, 5))
    probe = RelativityProbe(temperature=0.5)
    logs = [seen_by(probe, client(torch.tensor(h).float(), torch.tensor(h).float(), [1] * 4)) for h in heads]
    feature = torch.rand(1, 5, generator=torch_rng(0, "probe", "relativity", 0))
    z = heads @ array(feature)[0] / 0.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert np.concatenate([array(log.arrays["answers"]) for log in logs]) == pytest.approx(p, rel=1e-5)
    unit = p / np.linalg.norm(p, axis=1, keepdims=True)
    assert array(relativity(torch.from_numpy(p)[:, None])) == pytest.approx(unit @ unit.T)


def test_all_clients_of_a_round_get_the_same_feature_and_the_next_round_another():
    head = torch.eye(4, 5)
    first, again = (seen_by(RelativityProbe(), client(head, head, [1] * 4)).arrays["answers"] for _ in range(2))
    later = seen_by(RelativityProbe(), client(head, head, [1] * 4, round=1)).arrays["answers"]
    assert torch.equal(first, again)
    assert not torch.equal(first, later)


# ---------------------------------------------------------------- forces
def test_pull_less_push_is_the_step_of_gradient_descent():
    h, y, weight = a_batch()
    step = step_of(h, y, weight, [1, 1, 1, 0])
    pull, push = forces(h, step.z, y)
    assert array(pull - push) == pytest.approx(-array(step.weights[W].grad), abs=1e-6)
    assert pull[3].abs().max() == 0  # nobody pulls the missing class
    assert push[3].abs().max() > 0


def test_forces_of_observed_and_missing_classes():
    h, y, weight = a_batch()
    log = Log()
    for number in range(3):
        ForcesProbe(steps=2).step(step_of(h, y, weight, [1, 1, 1, 0]), Place(number, 0, ends_epoch=False), log)
    assert [row["step"] for row in log.rows] == [0, 1]
    z = array(h) @ array(weight).T
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    own = np.eye(4)[y.numpy()]
    pulls = np.linalg.norm((own * (1 - p)).T @ array(h), axis=1) / len(y)
    pushes = np.linalg.norm(((1 - own) * p).T @ array(h), axis=1) / len(y)
    found = log.rows[0]["values"]
    assert found["pulls"] == pytest.approx(pulls, rel=1e-5)
    assert found["pulling"] == pytest.approx(pulls[:3].mean(), rel=1e-5)
    assert found["direct"] == pytest.approx(pushes[:3].mean(), rel=1e-5)
    assert found["indirect"] == pytest.approx(pushes[3], rel=1e-5)


def test_features_that_are_not_finite_have_no_numbers():
    h = torch.full((6, 3), torch.inf)
    seen = client(torch.zeros(2, 3), torch.zeros(2, 3), [1, 1], (h, torch.arange(6) % 2))
    assert values(seen_by(SpectrumProbe(), seen), "trained") == {}
    assert "spread" not in values(seen_by(ProxiesProbe(project="pca"), seen), "trained")


# ---------------------------------------------------------------- cost, and the log
def test_what_is_stored_is_the_network_with_slots_and_further_messages():
    sizes = {"network": 100, "model": 80, "received": 180, "sent": 80, "kept": 50}
    log = seen_by(CostProbe(), client(torch.zeros(2, 2), torch.zeros(2, 2), [1, 1], sizes=sizes))
    assert values(log, "round")["stored"] == 100 + 50 + 100
    assert values(log, "round")["seconds"] == 1.5
    assert values(log, "round")["peak"] > 1e6


def test_a_number_that_does_not_exist_is_left_out():
    log = Log()
    log.row("x", {"a": math.nan, "b": None, "c": torch.tensor([1.0, math.nan]), "d": torch.tensor(2)}, epoch=3)
    assert log.rows == [{"name": "x", "epoch": 3, "values": {"c": [1.0, None], "d": 2.0}}]
