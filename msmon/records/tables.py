"""Records as plain columns: for analysis with numpy, and as Arrow tables.

Both forms replace text ids by texts. ``pyarrow`` is optional and imported on use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from msmon.errors import UsageError

Column = np.ndarray[Any, np.dtype[Any]]


def numpy_columns(
    records: Column, strings: Sequence[str], text_fields: Sequence[str]
) -> dict[str, Column]:
    """Return field name → array of shape (n,), contiguous; text fields as objects (str)."""
    texts: Column = np.array(strings, dtype=object)
    return {
        name: texts[records[name]] if name in text_fields else np.ascontiguousarray(records[name])
        for name in _names(records)
    }


def arrow_table(records: Column, strings: Sequence[str], text_fields: Sequence[str]) -> Any:
    """Return a ``pyarrow.Table`` with a column per field; texts are dictionary-encoded.

    ``strings`` must be valid Unicode. Raises UsageError when pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError("pyarrow is not installed", "pip install pyarrow") from None
    dictionary = pa.array(list(strings), pa.string())
    columns = {}
    for name in _names(records):
        values = np.ascontiguousarray(records[name])
        if name in text_fields:
            indices = pa.array(values.astype(np.int32))
            columns[name] = pa.DictionaryArray.from_arrays(indices, dictionary)
        else:
            columns[name] = pa.array(values)
    return pa.table(columns)


def _names(records: Column) -> tuple[str, ...]:
    names = records.dtype.names
    assert names is not None
    return names
