# SPDX-License-Identifier: Apache-2.0
"""A rank that trains and saves with `torch.distributed.checkpoint`; run as a script.

``saving_program.py FOLDER ends`` saves a state, loads it again, has another one written in the background,
and ends while it is; ``killed`` kills itself then. ``RANK``, ``WORLD_SIZE`` and ``PORT`` say which rank of
which job it is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 6
SAVED_AT = 1
BEHIND_AT = 3


class SlowWriter(dcp.FileSystemWriter):
    """Writes for half a second, or for ever."""

    def __init__(self, folder: Path, forever: bool) -> None:
        super().__init__(folder)
        self.begun = threading.Event()
        self._forever = forever

    def write_data(self, *args: Any, **kwargs: Any) -> Any:
        self.begun.set()
        time.sleep(600 if self._forever else 0.5)
        return super().write_data(*args, **kwargs)


def main(folder: Path, how: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{os.environ['PORT']}", rank=rank, world_size=world)
    network = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(network.parameters(), 0.1)
    writer = SlowWriter(folder / "behind", forever=how == "killed")
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.ones(STEPS * 4, 4)), batch_size=4)):
        network(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {"model": network.state_dict(), f"of rank {rank}": torch.zeros(1000 * (rank + 1))}
        if step == SAVED_AT:
            dcp.save(state, checkpoint_id=folder / "saved")
            dcp.load(state, checkpoint_id=folder / "saved")
        elif step == BEHIND_AT:
            dcp.async_save(state, storage_writer=writer)
            assert writer.begun.wait(60)
    if how == "killed":
        time.sleep(1)  # the last step is in the ring before the next event, which never comes
        os.kill(os.getpid(), signal.SIGKILL)
    print("trained", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
