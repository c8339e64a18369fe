"""Two streams that meet at the beginning of each block, replayed under TinyJit: `python two_streams.py`."""

from tinygrad import Tensor, TinyJit

BLOCKS, TEXT, IMAGE, WIDTH, HIDDEN = 3, 16, 64, 32, 96


def weight(rows: int, columns: int, seed: int) -> Tensor:
    made = [[((7 * i + 5 * j + seed) % 11 - 5) / 32 for j in range(columns)] for i in range(rows)]
    return Tensor(made).contiguous().realize()


SHAPES = ((WIDTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
WEIGHTS = [[weight(*shape, 3 * block + stream) for shape in SHAPES] for block in range(BLOCKS) for stream in range(2)]


def layers(x: Tensor, mixed: Tensor, weights: list[Tensor]) -> Tensor:
    first, up, down = weights
    x = (x + mixed @ first).contiguous()
    return (x + (x @ up).relu().contiguous() @ down).contiguous()


def model(text: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    for block in range(BLOCKS):
        joined = text.cat(image)
        mixed = (joined - joined.mean(axis=0, keepdim=True).contiguous()).contiguous()
        text = layers(text, mixed[:TEXT], WEIGHTS[2 * block])
        image = layers(image, mixed[TEXT:], WEIGHTS[2 * block + 1])
    Tensor.realize(text, image)
    return text, image


def inputs() -> tuple[Tensor, Tensor]:
    return weight(TEXT, WIDTH, 1), weight(IMAGE, WIDTH, 2)


if __name__ == "__main__":
    step = TinyJit(model)
    for _ in range(6):
        out = step(*((x + 0).contiguous().realize() for x in inputs()))
    print("out", *(f"{x.abs().sum().item():.1f}" for x in out))
