"""CLIP: a picture encoder and a text encoder that meet in one space (Radford et al., "Learning Transferable Visual
Models From Natural Language Supervision", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinygrad import Tensor, dtypes

from kcg.workloads.family import Input, Parameters
from kcg.workloads.layers import Window, attention, conv2d, layer_norm, linear

ABOUT = "CLIP, the similarity of pictures and texts"


@dataclass(frozen=True)
class Config:
    """Sizes of one comparison of `pictures` square pictures with `texts` texts."""

    dtype: str = "float32"
    pictures: int = 8
    size: int = 224
    patch: int = 32
    vision_width: int = 768
    vision_heads: int = 12
    texts: int = 8
    tokens: int = 77
    vocabulary: int = 49408
    text_width: int = 512
    text_heads: int = 8
    embedding: int = 512
    layers: int = 1  # in each tower; all blocks of a tower are of one shape

    @property
    def patches(self) -> int:
        return (self.size // self.patch) ** 2


PRESETS = {
    "mini": Config(
        pictures=2, size=32, patch=8, vision_width=64, vision_heads=4,
        texts=3, tokens=12, vocabulary=256, text_width=48, text_heads=3, embedding=40,
    ),
    "mini-f16": Config(
        dtype="float16", pictures=1, size=64, patch=16, vision_width=96, vision_heads=6,
        texts=4, tokens=16, vocabulary=320, text_width=64, text_heads=4, embedding=64,
    ),
    "mini-odd": Config(
        pictures=3, size=49, patch=7, vision_width=75, vision_heads=5,
        texts=5, tokens=13, vocabulary=351, text_width=63, text_heads=7, embedding=35,
    ),
    "base-32": Config(dtype="float16", pictures=32, texts=10),
    "base-16-f32": Config(pictures=4, patch=16, texts=5),
    "base-16-bf16": Config(dtype="bfloat16", pictures=16, patch=16, texts=9),
    "large-14": Config(
        dtype="float16", pictures=4, patch=14, vision_width=1024, vision_heads=16,
        texts=7, text_width=768, text_heads=12, embedding=768,
    ),
    "large-14-336-bf16": Config(
        dtype="bfloat16", pictures=2, size=336, patch=14, vision_width=1024, vision_heads=16,
        texts=6, text_width=768, text_heads=12, embedding=768,
    ),
    "huge-14-f32": Config(
        pictures=2, patch=14, vision_width=1280, vision_heads=16,
        texts=4, text_width=1024, text_heads=16, embedding=1024,
    ),
}  # fmt: skip


def inputs(config: Config) -> dict[str, Input]:
    return {
        "pictures": Input((config.pictures, 3, config.size, config.size), config.dtype),
        "tokens": Input((config.texts, config.tokens), "int32", below=config.vocabulary),
    }


def run(p: Parameters, config: Config, *, pictures: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised features (pictures, embedding) and (texts, embedding), and their scaled similarities."""
    seen = _normalised(_encode_pictures(p, config, pictures))
    read = _normalised(_encode_texts(p, config, tokens))
    return seen, read, p("logit_scale", 1, around=2.66).exp() * seen @ read.transpose()


def _encode_pictures(p: Parameters, config: Config, pictures: Tensor) -> Tensor:
    width, patch = config.vision_width, config.patch
    patches = conv2d(
        p, "visual.conv1", pictures, width, Window(patch, stride=patch, padding=0), bias=False
    ).contiguous()
    token = p("visual.class_embedding", 1, 1, width, fan_in=1).expand(config.pictures, 1, width)
    positions = p("visual.positional_embedding", config.patches + 1, width, fan_in=1)
    x = (token.cat(patches.flatten(2).transpose(1, 2), dim=1) + positions).contiguous()
    x = layer_norm(p, "visual.ln_pre", x)
    for i in range(config.layers):
        x = _block(p, f"visual.resblocks.{i}", x, config.vision_heads)
    return linear(p, "visual.proj", layer_norm(p, "visual.ln_post", x[:, 0]), config.embedding, bias=False)


def _encode_texts(p: Parameters, config: Config, tokens: Tensor) -> Tensor:
    width = config.text_width
    table = p("token_embedding", config.vocabulary, width, fan_in=1)
    x = (table[tokens] + p("positional_embedding", config.tokens, width, fan_in=1)).contiguous()
    for i in range(config.layers):
        x = _block(p, f"resblocks.{i}", x, config.text_heads, causal=True)
    # a text ends in the token of the highest number
    ends = layer_norm(p, "ln_final", x)[Tensor.arange(config.texts), tokens.argmax(-1)].contiguous()
    return linear(p, "text_projection", ends, config.embedding, bias=False)


def _block(p: Parameters, name: str, x: Tensor, heads: int, *, causal: bool = False) -> Tensor:
    batch, tokens, width = (int(n) for n in x.shape)
    qkv = linear(p, f"{name}.attn.in_proj", layer_norm(p, f"{name}.ln_1", x), 3 * width).contiguous()
    q, k, v = (part.reshape(batch, tokens, heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    mixed = attention(q, k, v, causal=causal).transpose(1, 2).reshape(batch, tokens, width)
    x = (x + linear(p, f"{name}.attn.out_proj", mixed, width)).contiguous()
    between = linear(p, f"{name}.mlp.c_fc", layer_norm(p, f"{name}.ln_2", x), 4 * width).quick_gelu().contiguous()
    return (x + linear(p, f"{name}.mlp.c_proj", between, width)).contiguous()


def _normalised(features: Tensor) -> Tensor:
    features = features.contiguous()
    length = features.cast(dtypes.float32).square().sum(-1, keepdim=True).sqrt()
    return (features / length.cast(features.dtype)).contiguous()
