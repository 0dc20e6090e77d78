# SPDX-License-Identifier: Apache-2.0
"""How much each rank may put into the traces that ranks share, so that none grows past what a store takes.

No trace holds more than `semconv.MAX_SPANS_PER_TRACE` spans or `semconv.MAX_BYTES_PER_TRACE` bytes of OTLP,
at any length of the run and any number of ranks. Ranks do not talk: each bound is a function of the rank and
of the number of ranks alone, and the sum over the ranks of a trace stays below the limit whatever each sends.
"""

from __future__ import annotations

from typing import Final

from grademl_otel import semconv

_MANY: Final = 1 << 20
"""Ranks of a run of which nobody knows how many it has."""
_LOW_RANKS: Final = 4
_LOW_RANK_SPANS: Final = 250
_FEWEST: Final = 8
"""Fewer spans of a step than that tell nothing: further ranks send none."""

_FIRST_RANK_SPANS: Final = 1000
"""Of the run's trace for the first rank of a shard: ranks do much the same, one is to be seen in full."""
_STRIDES: Final = 16

_CELLS_OF_SHARD: Final = 300_000
"""Numbers in the step tables of one trace: with 10 bytes for each, 3 MB."""
_TABLES_OF_SHARD: Final = 1_200_000
"""Bytes of the resource tables of one trace of a window; 0.8 MB are left for other spans."""
_TABLES_OF_RUN: Final = 2_000_000
"""The same of one trace of the run, whose other spans take up to 2 MB."""
_MAX_TABLE: Final = 500_000
"""Bytes of one resource table: spans of more are no good to anybody."""


def spans_of_step(rank: int, world_size: int) -> int:
    """Return how many spans of one step ``rank`` may send into the trace in which all ranks meet.

    Low ranks may send more, so that the steps of some are seen in full; the highest send nothing.
    """
    limit, world_size = semconv.MAX_SPANS_PER_TRACE, world_size or _MANY
    if world_size * _LOW_RANK_SPANS <= limit:
        return limit // world_size
    if rank < _LOW_RANKS:
        return _LOW_RANK_SPANS
    others = limit - _LOW_RANKS * _LOW_RANK_SPANS
    each = max(_FEWEST, others // (world_size - _LOW_RANKS))
    return each if rank < _LOW_RANKS + others // each else 0


def shard_of_asked_step(rank: int, world_size: int) -> int:
    """Return the shard of a step's trace that holds the step of ``rank`` when others refer to it.

    That is the one in which all ranks meet, or, for a rank without room in that, one of its own: what others
    put there is not ours to bound.
    """
    return 0 if spans_of_step(rank, world_size) else rank


def spans_of_run(rank: int, world_size: int) -> int:
    """Return how many spans ``rank`` may add to the run's trace, beside its run span."""
    first = rank - rank % semconv.RANKS_PER_RUN_SHARD
    members = _members(rank, world_size)
    room = semconv.MAX_SPANS_PER_TRACE - members
    if members == 1:
        return room
    return _FIRST_RANK_SPANS if rank == first else (room - _FIRST_RANK_SPANS) // (members - 1)


def admitted(number: int, room: int) -> bool:
    """Return whether the ``number``-th of an unknown many (from 0) is among the ``room`` that are sent.

    The first half of the room goes to the first ones; then every second is sent, every fourth, and so on, so
    that a run of any length is seen to its end.
    """
    first = (room + 1) // 2
    if number < first:
        return True
    number -= first
    left = room - first
    share = max(1, left // _STRIDES)
    stride = 2
    while left > 0:
        share = min(share, left)
        if number < share * stride:
            return number % stride == 0
        number -= share * stride
        left -= share
        stride *= 2
    return False


def worker_spans_per_part(world_size: int) -> int:
    """Return how many spans of loader workers one window part may add to the trace that it shares."""
    return max(0, semconv.MAX_SPANS_PER_TRACE // _parts_of_shard(world_size) - 1)


def cells_per_part(world_size: int) -> int:
    """Return how many numbers the step table of one part may have."""
    return _CELLS_OF_SHARD // _parts_of_shard(world_size)


def table_bytes_per_part(world_size: int) -> int:
    """Return how many bytes the resource table of one part may have."""
    return min(_MAX_TABLE, _TABLES_OF_SHARD // _parts_of_shard(world_size))


def table_bytes_of_run(rank: int, world_size: int) -> int:
    """Return how many bytes the resource table of the run span of ``rank`` may have."""
    return min(_MAX_TABLE, _TABLES_OF_RUN // _members(rank, world_size))


def _members(rank: int, world_size: int) -> int:
    """Return how many ranks share the run's trace with ``rank``, which is one of them."""
    first = rank - rank % semconv.RANKS_PER_RUN_SHARD
    return max(1, min((world_size or _MANY) - first, semconv.RANKS_PER_RUN_SHARD))


def _parts_of_shard(world_size: int) -> int:
    return semconv.ranks_per_shard(world_size) * semconv.parts_per_shard(world_size)
