"""The recorded programs of one GPU: which kernels and regions they are of, and how many of each.

    python -m evaluation.dataset.record source SOURCE.sqlite           # captures: no GPU; 6 minutes of a core
    python -m evaluation.dataset.record lattices SOURCE.sqlite LATTICES.sqlite
    python -m kcg.dataset generate --from SOURCE.sqlite --kinds tile --kernels-per-family 28 \\
        --schedules-per-kernel 16 --shard 1/4 --out tiles1.sqlite      # on each of four GPUs; the same command goes on
    KCG_MULTIPROCESSORS=80 python -m kcg.dataset generate --from SOURCE.sqlite --kinds tile --kernels-per-family 8 \\
        --schedules-per-kernel 12 --shard 1/4 --out few1.sqlite
    python -m kcg.dataset generate --compile-only --target h200 --from LATTICES.sqlite --kinds tile \\
        --samplers uniform --schedules-per-kernel 300 --out lattices.sqlite   # where there is no GPU
    python -m kcg.dataset generate --measure-only --out lattices.sqlite
    python -m kcg.dataset retime lattices.sqlite --best 10 --trials 3
    python -m kcg.dataset merge tiles*.sqlite lattices.sqlite few*.sqlite --out recorded.sqlite

Workloads are of every family that kcg has, in the sizes and types of real models. Nothing is ever chosen on `FROZEN`. A
lattice is a region with 300 programs drawn uniformly, of six groups; its fastest ten are timed again in turns, since
the least of 300 noisy times is too low.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from kcg.campaign.generate import captured
from kcg.campaign.settings import CampaignSettings
from kcg.campaign.tasks import distinct_calls, why_not
from kcg.cli import command_app, guarded
from kcg.compat.device import prepare
from kcg.dataset.journal import Journal
from kcg.errors import KcgError, UsageError
from kcg.kernel.kinds import space_of
from kcg.kernel.reading.kernel import read_kernel
from kcg.kernel.targets import target_named
from kcg.kernel.tile.forms import forms_of
from kcg.search.uniform import Legal
from kcg.types import Region, Target, Workload, WorkloadCall

WORKLOADS: Final = (
    "flux/768,flux/1024,llm/llama-1b-q4_k_m,llm/llama-1b-q8_0,llm/llama-1b-mxfp4,llm/llama-1b-iq3_s,llm/qwen-8b-q4_k_m,"
    "llm/moe-1b-q4_k_m,llm/llama-1b-q4_k_m-prompt,llm/llama-1b-q5_1,llm/llama-1b-f16,activations/llama-bf16,"
    "activations/bert,autoencoder_train/celeba-bf16,bert/base,bert/large,clip/base-16-bf16,convnet_train/cifar-bf16,"
    "convnext/tiny-f16,cross_entropy/language-bf16,diffusion_decoder/512-bf16,dit/large-2,dit/xl-2-512-bf16,"
    "efficientnet/b1-bf16,gpt2/small,gpt2/medium-bf16,gpt2_train/small-f16,llama/tinyllama,llama/3.2-1b-decode,"
    "llama/3.2-3b,llama_train/tinyllama-bf16,llama_train/stories110m-f16,lora_train/llama1b-bf16,lstm/gnmt,"
    "lstm_train/awd-bf16,mamba/790m,mamba/130m-step-b64,mlp_mixer/base-16,mlp_train/ciresan-bf16,mobilenet/large-f16,"
    "moe/olmoe,moe/granite-1b,norms/llama-bf16,norms/bert,optimizers/gpt2,quantize/llama,quantize/llama-decoding,"
    "quantize/qwen-bf16,resnet/resnet50-f16,resnet_train/resnet50-f16,rope/llama,rope/qwen-bf16,softmax/llama-bf16,"
    "softmax/gpt2,swin/base-bf16,synthetic_conv/f16,synthetic_gather/f16,synthetic_matmul/f16,synthetic_matmul/bf16,"
    "synthetic_reduce/f32,synthetic_reduce/f16,synthetic_transpose/f16,t5/base,unet/sd15-f16,unet/sdxl-bf16,"
    "unet_train/cifar-bf16,vae_decoder/sd-f16,vae_decoder/flux-bf16,vit/base-16,vit/large-14-336,vit_train/base-bf16,"
    "whisper/base,whisper/small-bf16,yolo/nano-f16,yolo/medium-f16"
)
FROZEN: Final = ("whisper", "yolo")
"""Families of which nothing is looked at before all that is learned, tuned or chosen stands."""
REGIONS: Final = 12  # of several kernels, of each preset
TARGET: Final = "h200"
ROWS, PRODUCT, CONVOLUTION, PACKED, ATTENTION, SEVERAL = (
    "row", "matmul", "convolution", "quantised product", "attention", "regions",
)  # fmt: skip
LATTICES: Final = {ROWS: 8, PRODUCT: 8, CONVOLUTION: 6, PACKED: 6, ATTENTION: 4, SEVERAL: 8}
"""How many there are of each group of regions."""
MOST_OF_A_FAMILY: Final = 3
SIZE: Final = 300  # programs of a lattice
OF_LATTICES: Final = "+lattices"  # ends the preset of their workloads: joined with the others, those stay whole
LEAST: Final = 250  # that must have run: some fail

app = command_app(no_args_is_help=True)


@app.command()
def source(out: Annotated[Path, typer.Argument(help="the journal that is written")]) -> None:
    """Capture the workloads, and what regions of several kernels they have."""
    prepare("CPU")
    settings = CampaignSettings(out, workloads=tuple(WORKLOADS.split(",")), regions=REGIONS, target=TARGET)
    with Journal.open(out) as journal:
        for workload in captured(settings, "CUDA", lambda line, eta_s: typer.echo(line, err=True)):
            journal.add_workload(workload)


@app.command()
def lattices(
    source: Annotated[Path, typer.Argument(help="a journal that `source` wrote")],
    out: Annotated[Path, typer.Argument(help="the journal that is written")],
    seed: Annotated[int, typer.Option(help="of the order in which regions are looked at")] = 0,
) -> None:
    """Choose the regions of the lattices, by their identity alone: nothing of them was timed."""
    target = target_named(TARGET)
    with Journal.open(source, create=False, read_only=True) as journal:
        workloads = list(journal.workloads())
    of_family = {call.region.id: workload.name for workload in workloads for call in workload.calls}
    found, families = Counter[str](), Counter[tuple[str, str]]()
    chosen: dict[str, WorkloadCall] = {}
    for call in distinct_calls(workloads, shard=(1, 1), seed=seed):
        family = of_family[call.region.id]
        group = group_of(call.region, target)
        if found[group] >= LATTICES.get(group, 0) or families[group, family] >= MOST_OF_A_FAMILY:
            continue
        if call.variables or why_not(call, target) or Legal(space_of(call.region, target, "tile")).count < SIZE:
            continue
        found[group] += 1
        families[group, family] += 1
        chosen[call.region.id] = call
        typer.echo(f"{group}: {call.region.id[:12]} of {family}")
        if found == Counter(LATTICES):
            break
    if missing := Counter(LATTICES) - found:
        raise UsageError(f"{source} lacks regions with {SIZE} programs: {dict(missing)}")
    with Journal.open(out) as journal:
        for workload in workloads:
            if calls := tuple(call for call in workload.calls if chosen.get(call.region.id) is not None):
                journal.add_workload(Workload(workload.name, f"{workload.preset}{OF_LATTICES}", calls))


def group_of(region: Region, target: Target) -> str:
    """What kind of work a region is; empty where no tile program is of it, or it is one of no group."""
    if len(region.kernels) > 1:
        try:
            forms = {json.loads(one.body)["form"] for one in space_of(region, target, "tile").prior()}
        except KcgError:
            return ""
        return ATTENTION if forms & {"stream", "specialized"} else SEVERAL
    try:
        kernel = read_kernel(region)
        names = {form.name for form in forms_of(kernel, target)}
    except KcgError:
        return ""
    if "packed" in names:
        return PACKED
    if "contraction" in names:
        assert kernel.contraction is not None
        return CONVOLUTION if len(kernel.contraction.reduce.src) > 2 else PRODUCT
    return ROWS if "reduction" in names else ""


if __name__ == "__main__":
    guarded(lambda: app(standalone_mode=False))
