"""kcg's Flux is diffusers' Flux: the same weights and inputs give the same output in both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tinygrad.helpers import Context

from evaluation.flux.in_pytorch import build_model
from evaluation.flux.weights import diffusers_inputs, diffusers_state
from kcg.workloads.flux import PRESETS, Flux, parameter_shapes
from kcg.workloads.flux_weights import random_inputs, random_weights
from tests.slow import first_rows


@pytest.mark.parametrize(("double", "single"), first_rows(1, [(1, 1), (2, 4)]))
def test_one_state_dict_gives_the_same_output_in_kcg_and_in_diffusers(double: int, single: int) -> None:
    config = replace(PRESETS["mini"], image_tokens=16, text_tokens=8, double_blocks=double, single_blocks=single)
    model, inputs = Flux(config), random_inputs(config)
    random_weights(model)
    with Context(NOOPT=1):  # kernels that compile in a third of the time
        ours = model(**inputs).numpy()
    state = diffusers_state({name: value.numpy() for name, value in model.parameters.items()}, config)
    theirs = build_model(config, "cpu")
    theirs.load_state_dict({name: torch.tensor(value) for name, value in state.items()}, strict=True)
    given = diffusers_inputs({name: value.numpy() for name, value in inputs.items()})
    with torch.no_grad():
        found = theirs(**{name: torch.tensor(value) for name, value in given.items()}, return_dict=False)[0].numpy()
    assert np.linalg.norm(ours - found) / np.linalg.norm(found) <= 1e-4


def test_both_variants_have_all_parameters_of_diffusers_model() -> None:
    for variant in ("dev", "schnell"):
        config = replace(PRESETS["mini"], variant=variant, double_blocks=1, single_blocks=1)
        state = diffusers_state({n: np.zeros(s, np.float32) for n, s in parameter_shapes(config).items()}, config)
        wanted = {name: tuple(value.shape) for name, value in build_model(config, "meta").state_dict().items()}
        assert {name: value.shape for name, value in state.items()} == wanted
