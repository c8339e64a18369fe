"""A correction learns what a predictor gets wrong about one kernel, and never makes a number that is none."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kcg.kernel.codec import kernel_of
from kcg.kernel.opts.space import KernelSpace
from kcg.predictor.correction import MOST, Correction
from kcg.predictor.features import Array, encode, graphs, kernel_features, target_features
from kcg.predictor.network import NetSettings
from kcg.training.network import GraphSet, Net
from kcg.types import Region
from tests.kernels import empty, kernels_of
from tests.known_targets import KNOWN_TARGETS

SIGMA = 0.3


def candidates(seed: int, n: int = 300, d: int = 64) -> tuple[Array, Array, Array]:
    """Embeddings of a kernel's schedules (few directions of many, all positive), predictions and spreads."""
    rng = np.random.default_rng(seed)
    x = np.maximum(rng.normal(1.0, 1.0, (n, 6)) @ rng.normal(size=(6, d)), 0.0)
    return x, rng.normal(-10.0, 1.0, n), np.full(n, SIGMA)


def planted(x: Array, *, level: float, tilt: float, seed: int = 0) -> Array:
    """(n,) what a predictor gets wrong: a level, and something linear in the embeddings."""
    centred = x - x.mean(0)
    along = centred @ np.random.default_rng(seed).normal(size=x.shape[1])
    return np.asarray(level + tilt * along / along.std())


def tau(one: Array, other: Array) -> float:
    from scipy.stats import kendalltau

    return float(kendalltau(one, other).statistic)


# -- numbers


def test_nothing_measured_changes_nothing() -> None:
    x, predicted, sigma = candidates(0)
    correction = Correction(x)
    for failed in (np.zeros(0), np.full(3, np.nan), np.full(3, np.inf)):
        correction.observe(x[: len(failed)], predicted[: len(failed)], failed)
        mean, deviation = correction.corrected(x, predicted, sigma)
        assert np.array_equal(mean, predicted) and np.array_equal(deviation, sigma)
    assert len(correction) == 0


@pytest.mark.parametrize("seed", range(4))
def test_a_planted_residual_is_recovered(seed: int) -> None:
    x, predicted, sigma = candidates(seed)
    wrong = planted(x, level=0.5, tilt=0.4, seed=seed)
    truth = predicted + wrong + np.random.default_rng(seed).normal(0, 0.03, len(x))
    correction, errors = Correction(x), []
    for first in range(0, 48, 8):
        errors.append(np.std(correction.corrected(x[48:], predicted[48:], sigma[48:])[0] - truth[48:]))
        index = slice(first, first + 8)
        correction.observe(x[index], predicted[index], truth[index])
    mean, _ = correction.corrected(x[48:], predicted[48:], sigma[48:])
    assert abs(np.mean(mean - truth[48:])) < 0.1, "the level is learned"
    assert np.std(mean - truth[48:]) < 0.15 < 0.35 < errors[0], "and so is the tilt"
    assert tau(mean, truth[48:]) > tau(predicted[48:], truth[48:])


def test_a_level_alone_orders_nothing_anew() -> None:
    x, predicted, sigma = candidates(1)
    correction = Correction(x)
    correction.observe(x[:8], predicted[:8], predicted[:8] + 2.0)
    mean, _ = correction.corrected(x, predicted, sigma)
    assert np.abs(mean - predicted - 2.0).max() < 0.15
    assert tau(mean, predicted) > 0.97


def test_sigma_shrinks_near_what_was_measured_and_never_grows() -> None:
    x, predicted, sigma = candidates(2)
    truth = predicted + planted(x, level=0.5, tilt=0.4)
    correction = Correction(x)
    for first in range(0, 32, 8):
        index = slice(first, first + 8)
        correction.observe(x[index], predicted[index], truth[index])
        mean, deviation = correction.corrected(x, predicted, sigma)
        assert (deviation <= sigma).all() and (deviation > 0).all()
    assert deviation[:32].mean() < 0.7 * deviation[32:].mean()
    assert deviation[:32].mean() < 0.4 * SIGMA
    far = x.mean(0) + 50 * (x[:1] - x.mean(0))
    assert correction.corrected(far, predicted[:1], sigma[:1])[1] == pytest.approx(SIGMA), "far from all, as it was"
    within = np.abs(mean - truth)[32:] < 1.96 * deviation[32:]
    assert within.mean() > 0.8, "what is left over is expected"


def test_the_order_and_the_batches_do_not_matter() -> None:
    x, predicted, sigma = candidates(3)
    truth = predicted + planted(x, level=-1.0, tilt=0.2)
    whole, pieces = Correction(x), Correction(x)
    whole.observe(x[:20], predicted[:20], truth[:20])
    for i in np.random.default_rng(0).permutation(20):
        pieces.observe(x[i : i + 1], predicted[i : i + 1], truth[i : i + 1])
    for one, other in zip(whole.corrected(x, predicted, sigma), pieces.corrected(x, predicted, sigma), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


# -- what cannot be


def test_no_input_makes_a_nan() -> None:
    x, predicted, sigma = candidates(5)
    x[3], x[4, 0], x[5] = np.nan, np.inf, 1e30
    truth = predicted + 0.1
    truth[:3] = (np.nan, 1e9, -1e9)
    for reference in (x, x[3:4], np.zeros((1, 64)), np.full((5, 64), 7.0), x[:1]):
        correction = Correction(reference)
        correction.observe(x[:40], predicted[:40], truth[:40])
        correction.observe(np.repeat(x[10:11], 50, 0), np.repeat(predicted[10], 50), np.repeat(truth[10], 50))
        mean, deviation = correction.corrected(x, predicted, sigma)
        assert np.isfinite(mean).all() and np.isfinite(deviation).all() and (deviation >= 0).all()
        assert mean[3] == predicted[3] and deviation[3] == sigma[3], "what has no embedding stays as it was predicted"


def test_without_features_the_level_is_learned() -> None:
    nothing = np.zeros((10, 0))  # of a checkpoint that has no networks
    correction = Correction(nothing)
    correction.observe(nothing[:5], np.zeros(5), np.ones(5))
    mean, deviation = correction.corrected(nothing, np.zeros(10), np.full(10, SIGMA))
    assert np.abs(mean - 1.0).max() < 0.1 and (deviation <= SIGMA).all()


def test_the_last_measurements_are_kept() -> None:
    x, predicted, sigma = candidates(6)
    whole, last = Correction(x), Correction(x)
    whole.observe(x, predicted, predicted + planted(x, level=0.5, tilt=0.4))
    last.observe(x[-MOST:], predicted[-MOST:], (predicted + planted(x, level=0.5, tilt=0.4))[-MOST:])
    assert len(whole) == len(last) == MOST < len(x)
    for one, other in zip(whole.corrected(x, predicted, sigma), last.corrected(x, predicted, sigma), strict=True):
        np.testing.assert_array_equal(one, other)


def test_ten_thousand_candidates_are_corrected_at_once() -> None:
    x, predicted, sigma = candidates(7, n=10_000, d=192)
    truth = predicted + planted(x, level=0.3, tilt=0.3)
    correction = Correction(x[:500])
    correction.observe(x[:64], predicted[:64], truth[:64])
    mean, deviation = correction.corrected(x, predicted, sigma)
    assert len(mean) == len(deviation) == 10_000
    assert np.abs(mean - truth).mean() < np.abs(predicted - truth).mean() / 2


# -- the networks' own features


@pytest.mark.parametrize("compare", [False, True])
def test_embeddings_are_what_the_heads_read(compare: bool) -> None:
    space = KernelSpace(
        Region((kernel_of(kernels_of((empty(64, 96) @ empty(96, 80)).relu())[-1]),)), KNOWN_TARGETS["sm_90"]
    )
    rng, schedules = random.Random(0), [space.baseline()]
    while len(schedules) < 12:
        if (step := space.sample(rng, rng.choice([*schedules, space.start()]))) is not None:
            schedules.append(step)
    made = graphs(encode(space.loop_nests(schedules)), space.target)
    zeros = np.zeros(len(made), np.int64)
    static = (kernel_features(space.region)[None], target_features(space.target)[None], zeros[:1])
    batch = GraphSet(made, zeros, *static).batch(torch.arange(len(made)))
    torch.manual_seed(0)
    nets = [Net(NetSettings(hidden=16, layers=1, compare=compare)).eval() for _ in range(2)]
    with torch.inference_mode():
        for net in nets:
            state = net.embed_graphs(batch)
            assert state.shape == (12, 16) and bool(torch.isfinite(state).all())
            answer = net.answer(batch, state)
            assert torch.equal(answer.rank, net(batch).rank) and torch.equal(answer.failure, net(batch).failure)
