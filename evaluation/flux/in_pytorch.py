"""A process that runs Flux in PyTorch: a denoising step as diffusers has it, or one of its parts.

Weights are random: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from evaluation.pytorch.kind import Case
from kcg.errors import UsageError
from kcg.workloads.flux import PRESETS, FluxConfig, input_shapes

if TYPE_CHECKING:
    import torch


RECIPE = "recipe"
"""The public recipe for Flux on H100s (huggingface/flux-fast, 2025) but for what changes results, its 8-bit numbers:
projections of query, key and value in one, the fastest attention PyTorch has there, and Inductor's flags."""
MISSING = "diffusers is not installed here: pip install diffusers==0.42.1, or leave the steps out with --part regions"


def check_installed() -> None:
    """Raises UsageError where diffusers is missing."""
    if find_spec("diffusers") is None:
        raise UsageError(MISSING)


def build_model(config: FluxConfig, device: str) -> Any:
    """diffusers' transformer of these sizes, on random weights, made on the device in the model's dtype."""
    import torch
    from diffusers import FluxTransformer2DModel

    before = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, config.dtype))
    try:
        with torch.device(device):
            model = FluxTransformer2DModel(
                patch_size=1,
                in_channels=config.in_channels,
                num_layers=config.double_blocks,
                num_single_layers=config.single_blocks,
                attention_head_dim=config.head_dim,
                num_attention_heads=config.heads,
                joint_attention_dim=config.context_in_dim,
                pooled_projection_dim=config.vec_in_dim,
                guidance_embeds=config.variant == "dev",
                axes_dims_rope=config.axes_dim,
            )
    finally:
        torch.set_default_dtype(before)
    return model.eval().requires_grad_(False)


def inputs_of(config: FluxConfig, device: str) -> dict[str, torch.Tensor]:
    """Random inputs under diffusers' names, of the sizes of kcg's own; the ids are those of a square picture."""
    import torch

    made = {}
    generator = torch.Generator().manual_seed(1)
    for name, (shape, dtype) in input_shapes(config).items():
        made[name] = torch.randn(shape, generator=generator).to(device).to(getattr(torch, dtype))
    side = max(1, int(config.image_tokens**0.5))
    places = torch.arange(config.image_tokens)
    ids = torch.stack((torch.zeros_like(places), places // side, places % side), dim=1)
    one = torch.full((1,), 0.5, device=device, dtype=made["img"].dtype)
    inputs = {
        "hidden_states": made["img"],
        "encoder_hidden_states": made["txt"],
        "pooled_projections": made["y"],
        "timestep": one,
        "img_ids": ids.to(device).float(),
        "txt_ids": torch.zeros(config.text_tokens, 3, device=device),
    }
    return inputs | ({"guidance": one.clone()} if config.variant == "dev" else {})


def velocity_of(model: Any) -> Any:
    """diffusers' model as a module whose output is a tensor: what is compiled."""
    import torch

    class Velocity(torch.nn.Module):
        """The model with a tensor as its output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
            return self.model(**inputs, return_dict=False)[0]

    return Velocity()


def build_step(case: dict[str, Any], device: str) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """The step of `preset` and its inputs. What is compiled is the model itself."""
    config = PRESETS[case["preset"]]
    return velocity_of(build_model(config, device)), inputs_of(config, device)


def build(case: Case, device: str) -> tuple[Callable[..., Any], dict[str, torch.Tensor]]:
    """A step, or with `kind` region one of its parts."""
    if case["kind"] == "flux":
        return build_step(case, device)
    from evaluation.flux.parts import build_region

    return build_region(case, device)


def compiled(function: Callable[..., Any], how: str) -> Callable[..., Any]:
    """By a mode of torch.compile; where whole models are tuned, each kind of block once, as diffusers' documentation
    advises: 57 blocks are tuned for longer than we wait."""
    from evaluation.pytorch import in_pytorch

    if how == RECIPE:
        how = "max-autotune-no-cudagraphs"
        _follow_recipe(function)
    if not (how.startswith("max-autotune") and hasattr(function, "model")):
        return in_pytorch.compiled(function, how)
    function.model.compile_repeated_blocks(mode=how, dynamic=False, fullgraph=True)
    return function


def _follow_recipe(function: Any) -> None:
    from torch._inductor import config

    config.conv_1x1_as_mm = True
    config.coordinate_descent_tuning = True
    config.coordinate_descent_check_all_directions = True
    config.epilogue_fusion = False
    function.model.fuse_qkv_projections()
    function.model.set_attention_backend("_native_cudnn")


if __name__ == "__main__":
    from evaluation.pytorch.in_pytorch import make_clock, prepare
    from evaluation.pytorch.serving import serve

    serve(make_clock, lambda case: prepare(case, build, compiled))
