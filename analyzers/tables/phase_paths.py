# SPDX-License-Identifier: Apache-2.0
"""Paths of phases as Arrow text: level by level, the path of a parent before what its children are called."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grademl_otel.analyzers.arrays import IntArray
from grademl_otel.analyzers.errors import UsageError
from grademl_otel.analyzers.execution.model import Phases, Types
from grademl_otel.analyzers.execution.order import Families, levels
from grademl_otel.analyzers.tables.inherited import added_up
from grademl_otel.analyzers.units import size as in_words

_MOST: Final = 1 << 31
"""Bytes of text: of phases each in the one before, paths grow with the square of their number."""


def paths(tree: Phases | Types, what: str) -> Any:
    """Return the path of every node, as large_string. UsageError where that is more than memory is for."""
    words, code = _identifiers(tree)
    dictionary = pa.array(words, pa.large_string())
    length = pc.binary_length(dictionary).to_numpy()[code] + 1
    length[0] = 0
    total = int(added_up(tree.size, length).sum()) + 1
    if total > _MOST:
        raise UsageError(
            f"paths of {len(tree):,} {what} are {in_words(total)} of text: ask for a part, with --steps,"
            " --ranks or --trace, or for other columns"
        )
    by_level = levels(Families(tree.parent))
    made = [pa.array(["/"], pa.large_string())]
    above, slash = pa.array([""], pa.large_string()), pa.scalar("/", pa.large_string())
    place = np.zeros(len(tree), np.int64)
    for nodes in by_level[1:]:
        parents = above.take(pa.array(place[tree.parent[nodes]]))
        above = pc.binary_join_element_wise(parents, dictionary.take(pa.array(code[nodes])), slash)
        place[nodes] = np.arange(len(nodes))
        made.append(above)
    order = np.empty(len(tree), np.int64)
    order[np.concatenate(by_level)] = np.arange(len(tree))
    return pa.concat_arrays(made).take(pa.array(order))


def coded_paths(types: Types, type_of: Any) -> Any:
    """Return the path of the type of each phase, as a dictionary."""
    texts = paths(types, "types").cast(pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(np.asarray(type_of, np.int32)), texts)


def _identifiers(tree: Phases | Types) -> tuple[list[str], IntArray]:
    """Return (what nodes are called, each once; for each node which of them)."""
    nodes = np.arange(len(tree))
    texts, which = tree.instance_texts(nodes)
    kinds = tree.kinds()
    pairs, code = np.unique(kinds.astype(np.int64) * len(texts) + which, return_inverse=True)
    _, first = np.unique(kinds, return_index=True)
    name = {int(kinds[node]): tree.escaped_name(int(node)) for node in first.tolist()}
    words = []
    for kind, text in zip((pairs // len(texts)).tolist(), (pairs % len(texts)).tolist(), strict=True):
        words.append(f"{name[kind]}[{texts[text]}]" if texts[text] else name[kind])
    return words, code.reshape(-1)
