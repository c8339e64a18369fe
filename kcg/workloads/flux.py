"""Flux.1 (`dev` and `schnell`), one denoising step, in plain tinygrad.

The architecture and the names of the parameters are those of Black Forest Labs' published weights, so that these load
as they are (`kcg.workloads.flux_weights`). Building a model and scheduling a step allocates nothing: parameters and
inputs are `Tensor.empty`.

How the step is cut into kernels. tinygrad fuses what is not told to be materialised, and a fused matmul may be
computed many times over (once per column of a concatenation, say). Every matmul therefore ends in a `.contiguous()`
after its own epilogue (bias, activation, gate, residual: no pass over memory of their own), and a value is made once:
- `linear1` of a single block is two matmuls over row slices of its weight, so that GELU is the epilogue of one of
  them; `linear2` is two over column slices that add up, so that attention and MLP are never concatenated.
- Query and key are normalised, rotated, scaled and joined over text and image in one pass each.
- The rotation tables are made once per step. The pair swap of the rotation is a `flip`, which costs no gated loads.
- Softmax keeps `exp(score - max)` unnormalised and divides the product with V, a pass over L×D instead of L×L.

Numbers: matmuls accumulate in float32, and norms, epilogues and softmax are float32. In bfloat16 models the scores are
kept as float16: the same bytes with three more bits, in a range that RMS-normalised queries and keys do not leave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tinygrad import Tensor, dtypes

from kcg.errors import UnknownName, UsageError

TIME_CHANNELS = 256  # width of the sinusoidal embedding of timestep and guidance
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class FluxConfig:
    """Sizes of one Flux step. Defaults are Flux.1's; batch is 1."""

    image_tokens: int
    text_tokens: int
    variant: str = "dev"  # "dev" has a guidance embedding, "schnell" has none
    dtype: str = "bfloat16"
    double_blocks: int = 19
    single_blocks: int = 38
    hidden: int = 3072
    heads: int = 24
    mlp_ratio: int = 4
    in_channels: int = 64
    context_in_dim: int = 4096
    vec_in_dim: int = 768
    axes_dim: tuple[int, int, int] = (16, 56, 56)
    theta: int = 10_000

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def mlp_hidden(self) -> int:
        return self.hidden * self.mlp_ratio

    @property
    def tokens(self) -> int:
        """Length of the joint sequence, text first."""
        return self.text_tokens + self.image_tokens


PRESETS: dict[str, FluxConfig] = {
    "mini": FluxConfig(
        image_tokens=256, text_tokens=64, dtype="float32", double_blocks=2, single_blocks=4,
        hidden=256, heads=2, context_in_dim=256, vec_in_dim=128,
    ),
    "768": FluxConfig(image_tokens=2304, text_tokens=256),
    "1024": FluxConfig(image_tokens=4096, text_tokens=512),
}  # fmt: skip
"""`mini` runs on a CPU; `768` and `1024` are Flux.1 at 768×768 and 1024×1024 pixels (a token is 16×16 of them)."""

VARIANTS = ("dev", "schnell")


def auto_preset(device: str) -> str:
    """The preset that suits a tinygrad device such as `"CPU"`, `"CPU:X86"` or `"CUDA"`."""
    return "mini" if device.split(":")[0].upper() == "CPU" else "1024"


def flux_config(
    preset: str, *, variant: str = "dev", double_blocks: int | None = None, single_blocks: int | None = None
) -> FluxConfig:
    """A preset with its variant and, where given, other numbers of blocks.

    Raises `UnknownName` for an unknown preset or variant, `UsageError` for a negative number of blocks.
    """
    if preset not in PRESETS:
        raise UnknownName("preset", preset, list(PRESETS))
    if variant not in VARIANTS:
        raise UnknownName("variant", variant, list(VARIANTS))
    config = PRESETS[preset]
    double = config.double_blocks if double_blocks is None else double_blocks
    single = config.single_blocks if single_blocks is None else single_blocks
    if double < 0 or single < 0:
        raise UsageError(f"the number of blocks cannot be negative: {double} double, {single} single")
    return replace(config, variant=variant, double_blocks=double, single_blocks=single)


def parameter_shapes(config: FluxConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, as in Black Forest Labs' safetensors files."""
    shapes: dict[str, tuple[int, ...]] = {}
    hidden, mlp = config.hidden, config.mlp_hidden

    def linear(name: str, inputs: int, outputs: int) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        shapes[f"{name}.bias"] = (outputs,)

    def query_key_norm(name: str) -> None:
        shapes[f"{name}.query_norm.scale"] = (config.head_dim,)
        shapes[f"{name}.key_norm.scale"] = (config.head_dim,)

    linear("img_in", config.in_channels, hidden)
    linear("txt_in", config.context_in_dim, hidden)
    embedders = {"time_in": TIME_CHANNELS, "vector_in": config.vec_in_dim}
    if config.variant == "dev":
        embedders["guidance_in"] = TIME_CHANNELS
    for name, width in embedders.items():
        linear(f"{name}.in_layer", width, hidden)
        linear(f"{name}.out_layer", hidden, hidden)
    for i in range(config.double_blocks):
        for stream in ("img", "txt"):
            block = f"double_blocks.{i}.{stream}"
            linear(f"{block}_mod.lin", hidden, 6 * hidden)
            linear(f"{block}_attn.qkv", hidden, 3 * hidden)
            query_key_norm(f"{block}_attn.norm")
            linear(f"{block}_attn.proj", hidden, hidden)
            linear(f"{block}_mlp.0", hidden, mlp)
            linear(f"{block}_mlp.2", mlp, hidden)
    for i in range(config.single_blocks):
        block = f"single_blocks.{i}"
        linear(f"{block}.linear1", hidden, 3 * hidden + mlp)
        linear(f"{block}.linear2", hidden + mlp, hidden)
        query_key_norm(f"{block}.norm")
        linear(f"{block}.modulation.lin", hidden, 3 * hidden)
    linear("final_layer.linear", hidden, config.in_channels)
    linear("final_layer.adaLN_modulation.1", hidden, 2 * hidden)
    return shapes


def analytic_operations(config: FluxConfig) -> int:
    """Multiply-add operations of one step: what a count over its kernels comes to if nothing is computed twice.

    - 2·m·n·k of every matmul, attention's QKᵀ and PV (2·L²·hidden each, L text and image tokens together) included;
    - 2 for every element whose square a norm sums: one LayerNorm of (n, hidden) per modulation, and query and key of
      (L, hidden) each per block. They are multiply-add reductions too (under 0.1 % at full size).
    """
    hidden, mlp, image, text, both = (
        config.hidden,
        config.mlp_hidden,
        config.image_tokens,
        config.text_tokens,
        config.tokens,
    )
    attention = 2 * 2 * both * both * hidden + 2 * 2 * both * hidden  # QKᵀ and PV, norms of query and key
    double = attention
    for n in (image, text):
        double += 2 * hidden * 6 * hidden  # modulation
        double += 2 * n * hidden * (3 * hidden + hidden + 2 * mlp)  # qkv, proj, MLP
        double += 2 * 2 * n * hidden  # two LayerNorms
    single = attention + 2 * hidden * 3 * hidden + 2 * both * hidden
    single += 2 * both * hidden * (3 * hidden + mlp) + 2 * both * (hidden + mlp) * hidden
    time_embedders = 2 if config.variant == "dev" else 1
    base = time_embedders * 2 * (TIME_CHANNELS + hidden) * hidden + 2 * (config.vec_in_dim + hidden) * hidden
    base += 2 * image * config.in_channels * hidden + 2 * text * config.context_in_dim * hidden
    base += 2 * hidden * 2 * hidden + 2 * image * hidden + 2 * image * hidden * config.in_channels  # final layer
    return base + config.double_blocks * double + config.single_blocks * single


@dataclass(frozen=True)
class _Rotation:
    """Tables of the rotary position embedding for the joint sequence, float32."""

    cos: Tensor  # (L, 1, head_dim/2, 1)
    sin: Tensor  # (L, 1, head_dim/2, 2): minus sine, sine


class Flux:
    """A Flux.1 model whose parameters are lazy: nothing is allocated before weights are assigned or a step is run.

    `parameters` maps the published names to tensors of the shapes of `parameter_shapes(config)`.
    """

    def __init__(self, config: FluxConfig, device: str | None = None) -> None:
        self.config = config
        self.dtype = getattr(dtypes, config.dtype)
        self.parameters: dict[str, Tensor] = {
            name: Tensor.empty(*shape, dtype=self.dtype, device=device)
            for name, shape in parameter_shapes(config).items()
        }

    def __call__(
        self,
        *,
        img: Tensor,  # (1, image_tokens, in_channels)
        img_ids: Tensor,  # (1, image_tokens, 3) float32: positions along the three axes
        txt: Tensor,  # (1, text_tokens, context_in_dim)
        txt_ids: Tensor,  # (1, text_tokens, 3) float32
        timestep: Tensor,  # (1,) float32 in [0, 1]
        y: Tensor,  # (1, vec_in_dim)
        guidance: Tensor | None = None,  # (1,) float32; `dev` only
    ) -> Tensor:
        """The predicted velocity of the image tokens, (1, image_tokens, in_channels), not realised."""
        vec = self._conditioning(timestep, y, guidance)
        rotation = self._rotation(txt_ids[0].cat(img_ids[0], dim=0))
        streams = {"txt": self._linear(txt[0], "txt_in"), "img": self._linear(img[0], "img_in")}
        streams = {name: self._store(x) for name, x in streams.items()}
        for i in range(self.config.double_blocks):
            streams = self._double_block(streams, f"double_blocks.{i}", vec=vec, rotation=rotation)
        x = self._store(streams["txt"].cat(streams["img"], dim=0))
        for i in range(self.config.single_blocks):
            x = self._single_block(x, f"single_blocks.{i}", vec=vec, rotation=rotation)
        shift, scale = self._modulation(vec, "final_layer.adaLN_modulation.1", 2)
        x = self._modulated_norm(x[self.config.text_tokens :], shift, scale)
        return self._store(self._linear(x, "final_layer.linear")).unsqueeze(0)

    def _store(self, x: Tensor) -> Tensor:
        """Materialise in the model's dtype: the end of a kernel."""
        return x.cast(self.dtype).contiguous()

    def _linear(self, x: Tensor, name: str, *, rows: slice = slice(None)) -> Tensor:
        """`rows` of a linear layer applied to (n, inputs); float32, not materialised, for an epilogue to follow."""
        weight, bias = self.parameters[f"{name}.weight"][rows], self.parameters[f"{name}.bias"][rows]
        return x.matmul(weight.transpose(), dtype=dtypes.float32) + bias.cast(dtypes.float32)

    def _conditioning(self, timestep: Tensor, y: Tensor, guidance: Tensor | None) -> Tensor:
        """SiLU of the conditioning vector, (1, hidden): all that modulations read of it."""
        if (guidance is None) != (self.config.variant == "schnell"):
            raise UsageError(f"Flux {self.config.variant} takes {'no ' if guidance is not None else ''}guidance")
        inputs = [("time_in", self._sinusoidal(timestep)), ("vector_in", y)]
        if guidance is not None:
            inputs.append(("guidance_in", self._sinusoidal(guidance)))
        vec: Tensor | None = None
        for name, x in inputs:
            between = self._store(self._linear(x, f"{name}.in_layer").silu())
            out = self._linear(between, f"{name}.out_layer")
            vec = (out if vec is None else vec + out).contiguous()
        assert vec is not None
        return self._store(vec.silu())

    def _sinusoidal(self, t: Tensor) -> Tensor:
        """Embedding (1, TIME_CHANNELS) of a scalar in [0, 1], as in Flux: cosines, then sines, of 1000·t·frequency."""
        half = TIME_CHANNELS // 2
        frequencies = (Tensor.arange(half, dtype=dtypes.float32) * (-math.log(10_000) / half)).exp()
        angles = (t.cast(dtypes.float32).reshape(1, 1) * 1000.0) * frequencies.reshape(1, half)
        return self._store(angles.cos().cat(angles.sin(), dim=1))

    def _rotation(self, ids: Tensor) -> _Rotation:
        """Tables for position ids (L, 3): every axis turns its own share of the pairs of a head."""
        angles = []
        for axis, dim in enumerate(self.config.axes_dim):
            steps = Tensor.arange(dim // 2, dtype=dtypes.float32)
            omega = (steps * (-2 * math.log(self.config.theta) / dim)).exp()
            angles.append(ids[:, axis : axis + 1].cast(dtypes.float32) * omega.reshape(1, -1))
        angle = angles[0].cat(*angles[1:], dim=1).contiguous().reshape(_rows(ids), 1, -1, 1)
        sign = Tensor.arange(2, dtype=dtypes.float32) * 2 - 1
        return _Rotation(angle.cos().contiguous(), (angle.sin() * sign).contiguous())

    def _modulation(self, vec: Tensor, name: str, parts: int) -> tuple[Tensor, ...]:
        """`parts` float32 vectors (1, hidden) from the conditioning: shift, scale and, but for the last layer, gate."""
        return tuple(self._linear(vec, name).contiguous().chunk(parts, dim=1))

    def _modulated_norm(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """LayerNorm of (n, hidden) without weights, times (1 + scale), plus shift; materialised."""
        centred = x.cast(dtypes.float32) - x.cast(dtypes.float32).mean(axis=-1, keepdim=True).contiguous()
        inverse = (centred.square().mean(axis=-1, keepdim=True) + NORM_EPSILON).rsqrt().contiguous()
        return self._store(centred * inverse * (1 + scale) + shift)

    def _attention(self, qkv: list[Tensor], norms: list[str], rotation: _Rotation) -> Tensor:
        """Joint attention of streams given by their (n, 3·hidden) and the names of their norms: (L, hidden)."""
        heads, dim, hidden = self.config.heads, self.config.head_dim, self.config.hidden
        length = sum(_rows(x) for x in qkv)

        def joined(part: Callable[[Tensor, str], Tensor]) -> Tensor:
            parts = [part(x, norm) for x, norm in zip(qkv, norms, strict=True)]
            return parts[0].cat(*parts[1:], dim=0) if len(parts) > 1 else parts[0]

        both = joined(lambda x, _: x[:, : 2 * hidden].reshape(-1, 2, heads, dim).cast(dtypes.float32))
        inverse = (both.square().mean(axis=-1, keepdim=True) + NORM_EPSILON).rsqrt().contiguous()  # (L, 2, heads, 1)

        def rotated(which: int, norm_name: str, factor: float) -> Tensor:
            def scaled(flipped: bool) -> Tensor:
                # the flip is taken before streams are joined: one expression read in two orders would be materialised
                def part(x: Tensor, norm: str) -> Tensor:
                    pairs = x[:, which * hidden : (which + 1) * hidden].reshape(-1, heads, dim // 2, 2)
                    weight = self.parameters[f"{norm}.{norm_name}.scale"].reshape(1, 1, dim // 2, 2)
                    if flipped:
                        pairs, weight = pairs.flip(-1), weight.flip(-1)
                    return pairs.cast(dtypes.float32) * weight.cast(dtypes.float32)

                return joined(part)

            x = scaled(False) * rotation.cos + scaled(True) * rotation.sin
            x = x * (inverse[:, which] * factor).unsqueeze(-1)
            return self._store(x.reshape(length, heads, dim).permute(1, 0, 2))

        query = rotated(0, "query_norm", dim**-0.5)
        key = rotated(1, "key_norm", 1.0)
        value = joined(lambda x, _: x[:, 2 * hidden :].reshape(-1, heads, dim))
        if len(qkv) > 1:
            value = value.contiguous()  # a joined operand would put gates into the matmul's loads
        scores = query.matmul(key.transpose(1, 2), dtype=dtypes.float32)
        scores = scores.cast(dtypes.float16 if self.dtype == dtypes.bfloat16 else self.dtype).contiguous()
        largest = scores.max(axis=-1, keepdim=True).contiguous()
        weights = self._store((scores.cast(dtypes.float32) - largest.cast(dtypes.float32)).exp())  # (heads, L, L)
        total = weights.cast(dtypes.float32).sum(axis=-1, keepdim=True).contiguous()
        out = weights.matmul(value.permute(1, 0, 2), dtype=dtypes.float32) / total
        # stored with a head axis of its own: a range over heads and elements together would keep tensor cores out
        return self._store(out.permute(1, 0, 2)).reshape(length, hidden)

    def _double_block(
        self, streams: dict[str, Tensor], block: str, *, vec: Tensor, rotation: _Rotation
    ) -> dict[str, Tensor]:
        """Text and image, each with weights of its own, meeting in one attention. Streams are (n, hidden)."""
        modulations = {s: self._modulation(vec, f"{block}.{s}_mod.lin", 6) for s in streams}
        qkv = {
            s: self._store(self._linear(self._modulated_norm(x, *modulations[s][:2]), f"{block}.{s}_attn.qkv"))
            for s, x in streams.items()
        }
        attended = self._attention(list(qkv.values()), [f"{block}.{s}_attn.norm" for s in qkv], rotation)
        text = self.config.text_tokens
        out = {}
        for s, mine in (("txt", attended[:text]), ("img", attended[text:])):
            _, _, gate, shift, scale, mlp_gate = modulations[s]
            x = self._store(streams[s] + gate * self._linear(mine, f"{block}.{s}_attn.proj"))
            between = self._linear(self._modulated_norm(x, shift, scale), f"{block}.{s}_mlp.0")
            between = self._store(between.gelu())
            out[s] = self._store(x + mlp_gate * self._linear(between, f"{block}.{s}_mlp.2"))
        return out

    def _single_block(self, x: Tensor, block: str, *, vec: Tensor, rotation: _Rotation) -> Tensor:
        """Attention and MLP side by side on the joint sequence (L, hidden)."""
        hidden = self.config.hidden
        shift, scale, gate = self._modulation(vec, f"{block}.modulation.lin", 3)
        normed = self._modulated_norm(x, shift, scale)
        qkv = self._store(self._linear(normed, f"{block}.linear1", rows=slice(0, 3 * hidden)))
        between = self._store(self._linear(normed, f"{block}.linear1", rows=slice(3 * hidden, None)).gelu())
        attended = self._attention([qkv], [f"{block}.norm"], rotation)
        weight = self.parameters[f"{block}.linear2.weight"]
        first = self._store(attended.matmul(weight[:, :hidden].transpose(), dtype=dtypes.float32))
        second = between.matmul(weight[:, hidden:].transpose(), dtype=dtypes.float32)
        bias = self.parameters[f"{block}.linear2.bias"].cast(dtypes.float32)
        return self._store(x + gate * (second + first + bias))


def _rows(x: Tensor) -> int:
    """Length of the first axis as an int (shapes here are never symbolic)."""
    return int(x.shape[0])


def input_shapes(config: FluxConfig) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every input of a step."""
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "img": ((1, config.image_tokens, config.in_channels), config.dtype),
        "img_ids": ((1, config.image_tokens, 3), "float32"),
        "txt": ((1, config.text_tokens, config.context_in_dim), config.dtype),
        "txt_ids": ((1, config.text_tokens, 3), "float32"),
        "timestep": ((1,), "float32"),
        "y": ((1, config.vec_in_dim), config.dtype),
    }
    if config.variant == "dev":
        shapes["guidance"] = ((1,), "float32")
    return shapes


def build(
    preset: str, *, variant: str = "dev", double_blocks: int | None = None, single_blocks: int | None = None
) -> tuple[Flux, dict[str, Tensor]]:
    """A model and the inputs of one step, all lazy and empty: for scheduling.

    Raises `UnknownName` and `UsageError` as `flux_config` does.
    """
    config = flux_config(preset, variant=variant, double_blocks=double_blocks, single_blocks=single_blocks)
    inputs = {
        name: Tensor.empty(*shape, dtype=getattr(dtypes, dtype))
        for name, (shape, dtype) in input_shapes(config).items()
    }
    return Flux(config), inputs


def step(model: Flux, inputs: dict[str, Tensor]) -> Tensor:
    """One denoising step, not realised: `step(...).schedule_linear()` gives its calls without allocating."""
    return model(**inputs)
