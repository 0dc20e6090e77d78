# SPDX-License-Identifier: Apache-2.0
"""A rank that does collectives of all kinds, one kind in each training step; run by a launcher.

``collective_program.py FOLDER`` prints the loss of each step, bit by bit. FOLDER is where the ranks tell each
other what they have issued: the last of them is late in some steps, and goes on when all others have arrived.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FLOATS = 8
BATCH = 2
LATE_S = 0.08
"""How much later than all others the late rank arrives, at least."""

STEPS: list[Callable[[Rank, Tensor], Tensor]] = []


def step(function: Callable[[Rank, Tensor], Tensor]) -> Callable[[Rank, Tensor], Tensor]:
    """Have a method be the next step."""
    STEPS.append(function)
    return function


def ones(count: int = FLOATS) -> Tensor:
    return torch.ones(count)


class Rows(Dataset[Tensor]):
    """Of the batch in which a rank is late in data, the late one waits in the fetching."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def __len__(self) -> int:
        return BATCH * len(STEPS)

    def __getitem__(self, index: int) -> Tensor:
        number = index // BATCH
        if index % BATCH == 0 and STEPS[number] is Rank.late_in_data:
            self.rank.come_last(number, 1)
        return torch.full((FLOATS,), 0.01 * index)


class Rank:
    """State of this rank; each method is a step and returns its loss."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.number = 0
        self.issued = 0
        """Collectives of the world in this step."""
        torch.manual_seed(0)
        self.net = nn.Linear(FLOATS, 1)
        self.sgd = torch.optim.SGD(self.net.parameters(), 0.01)
        self.buckets = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        self.ddp = DistributedDataParallel(self.buckets, bucket_cap_mb=0.02)
        self.ddp_sgd = torch.optim.SGD(self.ddp.parameters(), 0.01)
        self.pending: dist.Work | None = None
        evens = list(range(0, self.world, 2))
        self.evens = dist.new_group(evens)
        self.pair = dist.new_group([0, self.world - 1])
        self.alone = [dist.new_group([rank]) for rank in range(self.world)][self.rank]
        world = dist.group.WORLD
        assert world is not None
        if hasattr(world, "register_post_hook"):
            world.register_post_hook(1, self.told)

    # --- Who is late -----------------------------------------------------------------------------------

    def told(self, arguments: object) -> None:
        """A hook of the program's own: this rank has issued one more collective."""
        self.issued += 1
        (self.folder / f"{self.number}-{self.rank}-{self.issued}").touch()

    def come_last(self, number: int, collective: int) -> None:
        """Let the others arrive first at one of the collectives of a step; only in the late rank."""
        if self.rank != self.world - 1:
            return
        others = [self.folder / f"{number}-{other}-{collective}" for other in range(self.world - 1)]
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in others) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(LATE_S)

    # --- Steps -----------------------------------------------------------------------------------------

    def train(self, x: Tensor) -> Tensor:
        """The least that makes a step."""
        self.sgd.zero_grad()
        loss: Tensor = self.net(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.sgd.step()
        return loss

    def train_ddp(self, x: Tensor, late_in_forward: bool = False, late_in_backward: bool = False) -> Tensor:
        self.ddp_sgd.zero_grad()
        x = x.repeat(1, 8) * (self.rank + 1)
        handles = []
        if late_in_forward:
            handles += [self.buckets[1].register_forward_pre_hook(lambda *_: self.come_last(self.number, 1))]
        if late_in_backward:
            handles += [self.buckets[1].register_forward_hook(self.before_second_bucket)]
        loss: Tensor = self.ddp(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.ddp_sgd.step()
        for handle in handles:
            handle.remove()
        return loss

    def before_second_bucket(self, module: nn.Module, args: object, out: Tensor) -> None:
        """Gradients come from the last layer to the first: at this one, half are in the first bucket."""

        def late(gradient: Tensor) -> None:
            self.come_last(self.number, 2)

        out.register_hook(late)  # type: ignore[no-untyped-call]

    @step
    def all_reduces(self, x: Tensor) -> Tensor:
        dist.all_reduce(ones())
        work = dist.all_reduce(ones(2), async_op=True)
        assert work is not None
        work.wait()
        return self.train(x)

    @step
    def one_and_all(self, x: Tensor) -> Tensor:
        dist.broadcast(ones(), 0)
        dist.reduce(ones(), 0)
        parts = [ones(3) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(ones(3), parts)
        dist.scatter(ones(3), parts)
        dist.barrier()
        dist.monitored_barrier(timeout=timedelta(seconds=60))
        return self.train(x)

    @step
    def parts(self, x: Tensor) -> Tensor:
        whole, parts = ones(4 * self.world), [ones(4) for _ in range(self.world)]
        dist.all_gather(parts, ones(4))
        dist.all_gather_into_tensor(whole, ones(4))
        dist.reduce_scatter(ones(4), parts)
        dist.reduce_scatter_tensor(ones(4), whole)
        dist.all_to_all_single(ones(self.world), ones(self.world))
        return self.train(x)

    @step
    def objects(self, x: Tensor) -> Tensor:
        dist.broadcast_object_list([self.rank])
        dist.all_gather_object([None] * self.world, self.rank)
        return self.train(x)

    @step
    def between_two(self, x: Tensor) -> Tensor:
        first, last = 0, self.world - 1
        if self.rank == first:
            dist.send(ones(3), last)
            for work in [dist.isend(ones(tag), last, tag=tag) for tag in (4, 5)]:
                assert work is not None
                work.wait()
            dist.send(ones(6), last)
        elif self.rank == last:
            dist.recv(ones(3), first)
            for work in [dist.irecv(ones(tag), first, tag=tag) for tag in (5, 4)]:  # in another order
                assert work is not None
                work.wait()
            dist.recv(ones(6))
        dist.barrier()
        right, left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        both = [dist.P2POp(dist.isend, ones(7), right), dist.P2POp(dist.irecv, ones(7), left)]
        for work in dist.batch_isend_irecv(both):
            work.wait()
        return self.train(x)

    @step
    def groups(self, x: Tensor) -> Tensor:
        if self.rank % 2 == 0:
            dist.all_reduce(ones(2), group=self.evens)
        if self.rank in (0, self.world - 1):
            dist.all_reduce(ones(3), group=self.pair)
        dist.all_reduce(ones(4), group=self.alone)
        dist.all_reduce(ones(5))
        return self.train(x)

    @step
    def coalesced(self, x: Tensor) -> Tensor:
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(ones(2))
            dist.all_reduce(ones(3))
        manager.wait()
        return self.train(x)

    @step
    def functionals(self, x: Tensor) -> Tensor:
        world = dist.group.WORLD
        assert world is not None
        functional.all_reduce(ones(3), "sum", world).sum().item()
        return self.train(x)

    @step
    def ends_later(self, x: Tensor) -> Tensor:
        """One that ends when the step is over, and is waited for in the next."""
        loss = self.train(x)
        if self.rank != self.world - 1:
            self.pending = dist.all_reduce(ones(9), async_op=True)
        return loss

    @step
    def later(self, x: Tensor) -> Tensor:
        loss = self.train(x)
        if self.rank == self.world - 1:
            self.come_last(self.number, 1)  # when the others' step before is over
            dist.all_reduce(ones(9))
        else:
            self.told(None)
            assert self.pending is not None
            self.pending.wait()
            self.pending = None
        return loss

    @step
    def ddp_first(self, x: Tensor) -> Tensor:
        """After it the buckets are made anew."""
        return self.train_ddp(x)

    @step
    def ddp_second(self, x: Tensor) -> Tensor:
        return self.train_ddp(x)

    @step
    def late_in_data(self, x: Tensor) -> Tensor:
        return self.train_ddp(x)

    @step
    def late_in_forward(self, x: Tensor) -> Tensor:
        return self.train_ddp(x, late_in_forward=True)

    @step
    def late_in_backward(self, x: Tensor) -> Tensor:
        return self.train_ddp(x, late_in_backward=True)

    @step
    def sharded(self, x: Tensor) -> Tensor:
        """Modules, optimizers and tensors that are spread over the ranks."""
        from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.distributed.tensor import Shard, distribute_tensor

        cpu = torch.device("cpu")
        mesh = init_device_mesh("cpu", (self.world,))
        two = nn.Sequential(nn.Linear(FLOATS, FLOATS), nn.Linear(FLOATS, FLOATS))
        fully_shard(two, mesh=mesh)
        one = FullyShardedDataParallel(nn.Linear(FLOATS, FLOATS), device_id=cpu)
        optimizer = ZeroRedundancyOptimizer(self.net.parameters(), torch.optim.SGD, lr=0.01)
        loss: Tensor = self.net(one(two(x))).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tensor = distribute_tensor(torch.ones(self.world * 2, 2), mesh, [Shard(0)])
        tensor.sum().full_tensor()
        return loss


def timed_out() -> str:
    """What a program sees of a collective that not all come to."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    assert isinstance(group, dist.ProcessGroup)
    if dist.get_rank() == 0:
        try:
            dist.all_reduce(ones(), group=group)
        except RuntimeError as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            return f"{type(error).__name__} {frames}"
    return ""


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = Rank(Path(sys.argv[1]))
    losses = []
    for number, x in enumerate(DataLoader(Rows(rank), batch_size=BATCH)):
        rank.number, rank.issued = number, 0
        losses.append(STEPS[number](rank, x).item().hex())
    said = timed_out()
    sys.stdout.write("".join(f"rank {rank.rank} {line}\n" for line in (*losses, said)))
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
