"""What a family computes is in question here, not tinygrad's schedules: plain loops compile in half the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tinygrad.helpers import Context

SLOW = (
    "[unet-",
    "[vae_decoder-",
    "[yolo-",
    "[resnet-",
    "[efficientnet-",
    "[convnext-",
    "[llama-",
    "[moe-",
    "[bert-",
    "[mamba-mamba-mini-0",
    "test_swin",
    "test_clip",
    "test_dit",
    "test_whisper",
    "test_diffusion_decoder",
    "[unet_train]",
    "[autoencoder_train]",
    "[gpt2_train]",
    "[vit_train]",
    "[convnet_train]",
    "[resnet_train]",
    "[llama_train]",
    "[lora_train]",
    "[lstm_train]",
)
"""Two to six seconds each; what they are made of is in the families that are left."""


@pytest.fixture(autouse=True)
def unoptimised() -> Iterator[None]:
    """No Opts."""
    with Context(NOOPT=1):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In float16 a family is the same program with other types. `make test ARGS="-m slow"` checks all of it."""
    here = Path(__file__).parent
    for item in items:
        presets = [v for v in getattr(getattr(item, "callspec", None), "params", {}).values() if isinstance(v, str)]
        slow = any(preset.endswith("-f16") for preset in presets) or any(name in item.name for name in SLOW)
        if here in item.path.parents and slow:
            item.add_marker(pytest.mark.slow)
