# SPDX-License-Identifier: Apache-2.0
"""torchdata's `StatefulDataLoader`: a loader of torch with iterators and a worker loop of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchdata.stateful_dataloader import stateful_dataloader as torchdata

from grademl_otel.instrumentations.patches import Patches
from grademl_otel.instrumentations.torch.data import record_loader
from grademl_otel.instrumentations.torch.worker import known_loop, run_timed, wrap_receive


def install(patches: Patches) -> None:
    """Record it as torch's own; raises when it is not the one known here."""
    global _original_loop
    _original_loop = known_loop(torchdata._worker_loop)
    with_workers = torchdata._StatefulMultiProcessingDataLoaderIter
    record_loader(
        patches, torchdata.StatefulDataLoader, torchdata._StatefulSingleProcessDataLoaderIter, with_workers
    )
    patches.replace(with_workers, "_try_get_data", wrap_receive(with_workers._try_get_data))
    patches.replace(torchdata, "_worker_loop", timed_loop)


_original_loop: Callable[..., None] | None = None


def timed_loop(*args: Any, **kwargs: Any) -> None:
    """Run torchdata's worker loop with timed queues; in the worker process."""
    run_timed(_original_loop or torchdata._worker_loop, args, kwargs)
