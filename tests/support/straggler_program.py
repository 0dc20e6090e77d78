# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together, one of which keeps the others waiting; run by a launcher.

For `STEPS` steps each a rank is late in fetching, in forward, in backward: `LATE` says where, and `who` which
rank. In the last part gradients are averaged by a blocking call, and a rank is late before that.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LATE = ("data.wait", "forward", "backward", "blocking")
STEPS = 14
WARM_UP = 4
"""Steps before, in which nobody is late."""
BATCH = 2
LATE_S = 0.12
"""So long that all of these steps are kept in detail."""


def who(part: int, world: int) -> int:
    """Return the rank that is late in ``part``."""
    return (part + 1) % world


def part_of(step: int) -> int:
    """Return the part that ``step`` is in; -1 in the warm-up."""
    return (step - WARM_UP) // STEPS


class Late:
    """Sleeps where this rank is late."""

    step = 0

    def __call__(self, place: str) -> None:
        part = part_of(self.step)
        if part >= 0 and LATE[part] == place and who(part, dist.get_world_size()) == dist.get_rank():
            time.sleep(LATE_S)


late = Late()


class Rows(Dataset[Tensor]):
    def __len__(self) -> int:
        return BATCH * (WARM_UP + STEPS * len(LATE))

    def __getitem__(self, index: int) -> Tensor:
        if index % BATCH == 0:
            late.step = index // BATCH
            late("data.wait")
        return torch.full((8,), 0.01 * index)


class Slow(nn.Module):
    """Is late in its forward, and in its backward."""

    def forward(self, x: Tensor) -> Tensor:
        late("forward")
        if x.requires_grad:
            x.register_hook(lambda gradient: late("backward"))  # type: ignore[no-untyped-call]
        return x


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    layers = nn.Sequential(nn.Linear(8, 64), Slow(), nn.Linear(64, 64), nn.Linear(64, 1))
    together = DistributedDataParallel(layers, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(layers.parameters(), 0.01)
    for step, x in enumerate(DataLoader(Rows(), batch_size=BATCH)):
        alone = part_of(step) == LATE.index("blocking")
        optimizer.zero_grad()
        (layers if alone else together)(x).square().mean().backward()
        if alone:
            late("blocking")
            gradients = [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]
            together_now = nn.utils.parameters_to_vector(gradients)
            dist.all_reduce(together_now)
            nn.utils.vector_to_parameters(together_now / dist.get_world_size(), gradients)
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
