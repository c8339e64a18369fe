from tinygrad import Tensor, TinyJit, nn


class Net:
    def __init__(self):
        self.c1, self.c2, self.c3 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3)
        self.out = nn.Linear(64 * 3 * 3, 10)

    def __call__(self, x):
        x = self.c1(x).relu().max_pool2d()
        x = self.c2(x).relu().max_pool2d()
        return self.out(self.c3(x).relu().flatten(1))


net = Net()
classify = TinyJit(lambda x: net(x).argmax(1).realize())
for _ in range(6):
    found = classify(Tensor.rand(256, 1, 28, 28).realize())
print(found.numpy()[:10])
