"""A perceptron learns a sum: forward, backward and a step of gradient descent at once."""

from tinygrad import Tensor, TinyJit

weights = [(Tensor.rand(*shape) / 64).realize() for shape in ((64, 256), (256, 1))]


@TinyJit
def step(x: Tensor) -> Tensor:
    loss = (x.dot(weights[0]).relu().dot(weights[1]) - x.sum(-1, keepdim=True)).square().mean()
    for weight, gradient in zip(weights, loss.gradient(*weights), strict=True):
        weight.assign(weight - 1e-4 * gradient)
    return loss.realize(*weights)


losses = [step(Tensor.rand(128, 64).realize()).item() for _ in range(8)]
print(losses[-1] < losses[0])
