# SPDX-License-Identifier: Apache-2.0
"""What a provider of sources, a source and a reading are: the contract between sampler and sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from grademl_otel.catalog.metric import Metric
from grademl_otel.convert.spans import Attributes


class Series:
    """One metric of one device, with the attributes of all its points. Made once; compared by identity.

    ``device`` is the name of the resource in resource tables: a GPU's ``GPU-...``, a port's ``mlx5_0/1``, an
    interface, a disk, ``cpu``, ``memory``. ``capacity`` is the most that the value can be, in the metric's
    unit, of a counter in that unit per second; None where nobody knows. It may be set anew at any reading.
    ``start_ns`` is for the sampler to set: when it was first read, in ns of perf_counter; the time at which a
    counter was 0.
    """

    __slots__ = ("attributes", "capacity", "device", "metric", "start_ns")

    def __init__(self, metric: Metric, attributes: Attributes, device: str, capacity: float | None = None):
        self.metric = metric
        self.attributes = attributes
        self.device = device
        self.capacity = capacity
        self.start_ns = 0


Reading = tuple[Series, "int | float"]
"""A series and its value now; of a counter its running total, which `counters.Running` makes of raw ones."""


class Source(Protocol):
    """Something that is read by one thread at a time, not always by the same one."""

    @property
    def name(self) -> str:
        """Unique among all sources, for people and for `grademl.sampler.source`: ``gpu GPU-...``, ``cpu``."""

    def read(self) -> Sequence[Reading]:
        """Return what there is now; what is not supported is absent. May block.

        Raises anything: it is counted, told once, and the source is read again later. `SourceGone` says that
        it is no use to come again.
        """

    def close(self) -> None:
        """Let go of what it holds; called once, after its last reading."""


@runtime_checkable
class InParts(Source, Protocol):
    """A source of whose readings a part comes a moment later, while nobody sleeps for it."""

    @property
    def rest_after_s(self) -> float:
        """Seconds from now until `read_rest` is to be called; 0 where the last reading is complete."""

    def read_rest(self) -> Sequence[Reading]:
        """Return what else there is of the last reading; as `Source.read`, but that what was read before
        stands by itself when this raises.
        """


class SourceGone(Exception):
    """The device is no longer there."""


class Provider(Protocol):
    """Finds the sources of one kind."""

    @property
    def name(self) -> str:
        """For people: ``nvidia``, ``amd``, ``host``, ``interconnect``."""

    def sources(self) -> Sequence[Source]:
        """Return all that there is now: the same object as before for what was there before.

        Called again now and then, from a thread of its own, so that what is plugged in or comes back is
        found. Returns nothing where there is no such thing. May block, and may raise, as `Source.read`.
        """

    def close(self) -> None:
        """Let go of what it holds; called once, after its last source was closed."""
