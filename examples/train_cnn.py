# SPDX-License-Identifier: Apache-2.0
"""Train a small CNN on images it generates: an ordinary PyTorch script that knows nothing of tracing.

    python examples/train_cnn.py
    opentelemetry-instrument python examples/train_cnn.py

Its images lie in a slow store: each takes `--decode-ms` to be read and decoded, so that with the defaults the
training waits for its DataLoader. `--decode-ms 0` makes it wait for the network instead.
"""

import argparse
import tempfile
import time
import zlib
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = 4
SIDE = 32  # pixels


class SlowImages(Dataset):
    """`count` compressed images of `CLASSES` kinds of stripes; `decode_ms` to read one."""

    def __init__(self, count, decode_ms, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(CLASSES, (count,), generator=generator).tolist()
        self.store = [zlib.compress(self._draw(label, generator)) for label in self.labels]
        self.decode_s = decode_ms / 1000

    @staticmethod
    def _draw(label, generator):
        """Stripes whose direction is the class, drowned in noise: the bytes of a (3, SIDE, SIDE) image."""
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        along = (x, y, x + y, x - y)[label]
        phase = torch.rand((), generator=generator) * 6.28
        stripes = torch.sin(along * 0.6 + phase).expand(3, SIDE, SIDE)
        noisy = stripes + 3 * torch.randn(3, SIDE, SIDE, generator=generator)
        return bytes((noisy.clamp(-8, 8) * 15 + 128).to(torch.uint8).flatten().tolist())

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(self.decode_s)
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.store[index])), dtype=torch.uint8)
        return pixels.view(3, SIDE, SIDE).float() / 127.5 - 1, self.labels[index]


def make_network():
    def block(inputs, outputs):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    return nn.Sequential(
        block(3, 32), block(32, 64), block(64, 96), nn.Flatten(), nn.Dropout(0.5), nn.Linear(96 * 16, CLASSES)
    )


def train(network, loader, optimizer, device):
    network.train()
    total = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(network, loader, device):
    network.eval()
    right = count = 0
    for images, labels in loader:
        right += (network(images.to(device)).argmax(1).cpu() == labels).sum().item()
        count += len(labels)
    return right / count


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=32, help="training steps in an epoch")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2, help="DataLoader processes; 0: none")
    parser.add_argument("--decode-ms", type=float, default=12.0, help="to read and decode one image")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="keep checkpoints here")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the network is too small to be shared out among cores
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = arguments.batch_size

    training = SlowImages(arguments.steps * batch, arguments.decode_ms, seed=1)
    held_out = SlowImages(4 * batch, arguments.decode_ms, seed=2)
    train_loader = DataLoader(training, batch, shuffle=True, num_workers=arguments.workers)
    test_loader = DataLoader(held_out, batch, num_workers=arguments.workers)

    network = make_network().to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.checkpoint or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        best, best_accuracy = folder / "best.pt", -1.0
        for epoch in range(arguments.epochs):
            loss = train(network, train_loader, optimizer, device)
            accuracy = evaluate(network, test_loader, device)
            print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.3f}", flush=True)
            if accuracy > best_accuracy:
                best_accuracy = accuracy
                torch.save({"network": network.state_dict(), "epoch": epoch}, best)
        kept = torch.load(best, map_location=device)
        network.load_state_dict(kept["network"])
        print(f"best: epoch {kept['epoch']}, accuracy {evaluate(network, test_loader, device):.3f}")


if __name__ == "__main__":
    main()
