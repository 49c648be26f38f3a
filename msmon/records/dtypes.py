"""The layouts as numpy's structured dtypes.

They lie apart from :mod:`msmon.records.layout` because filters and options need that table
on the command line, which starts in half the time without numpy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from msmon.records.kinds import ActivityKind
from msmon.records.layout import LAYOUTS, MARKER_EVENT, Layout

RECORD_ALIGNMENT_BYTES = 8
"""MSPTI's structs are packed, and their size is rounded up to this."""


def _packed(layout: Layout) -> np.dtype[Any]:
    formats = [np.dtype(code) for _, code in layout.c_fields]
    offsets = [0, *itertools.accumulate(item.itemsize for item in formats)]
    description: Any = {
        "names": [name for name, _ in layout.c_fields],
        "formats": formats,
        "offsets": offsets[:-1],
        "itemsize": -(-offsets[-1] // RECORD_ALIGNMENT_BYTES) * RECORD_ALIGNMENT_BYTES,
    }
    dtype: np.dtype[Any] = np.dtype(description)
    return dtype


DTYPES: dict[ActivityKind, np.dtype[Any]] = {
    kind: _packed(layout) for kind, layout in LAYOUTS.items()
}
"""One packed, 8-aligned structured dtype per kind; ``itemsize`` is the C struct's size."""

EVENT_DTYPE = np.dtype([(item.name, item.type) for item in MARKER_EVENT.fields])
"""One row per event of paired markers; texts are ids into the strings beside it."""
