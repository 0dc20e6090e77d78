# SPDX-License-Identifier: Apache-2.0
"""A worker for whole models: ``python -m benchmarks.models cnn|resnet50 STEPS WAY``.

``cnn`` trains on images of MNIST's shape, ``resnet50`` (as published: 25.6 million parameters) infers on
images of 224 x 224. A block is STEPS batches; the data is random.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.ways import serve


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1x1, 3x3, 1x1 convolutions with a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width

        def normed(a: int, b: int, kernel: int, by: int = 1) -> list[nn.Module]:
            return [nn.Conv2d(a, b, kernel, by, kernel // 2, bias=False), nn.BatchNorm2d(b)]

        self.body = nn.Sequential(
            *normed(channels, width, 1), nn.ReLU(), *normed(width, width, 3, stride), nn.ReLU(),
            *normed(width, out, 1),
        )  # fmt: skip
        same = channels == out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*normed(channels, out, 1, stride))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    blocks, channels = [], 64
    for width, number, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(number):
            blocks.append(Bottleneck(channels, width, stride if index == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


def training(steps: int) -> Callable[[], list[float]]:
    net, loss_of = cnn(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters())
    count = 32 * steps
    data = TensorDataset(torch.randn(count, 1, 28, 28), torch.randint(10, (count,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)

    def block() -> list[float]:
        for images, labels in loader:
            optimizer.zero_grad()
            loss_of(net(images), labels).backward()
            optimizer.step()
        return []

    return block


def inference(steps: int) -> Callable[[], list[float]]:
    net = resnet50().eval()
    images = torch.randn(1, 3, 224, 224)

    def block() -> list[float]:
        with torch.no_grad():
            for _ in range(steps):
                net(images)
        return []

    return block


def main() -> None:
    model, steps, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    serve(training(steps) if model == "cnn" else inference(steps), way)


if __name__ == "__main__":
    main()
