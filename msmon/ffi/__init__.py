"""MSPTI as C sees it.

``prototypes`` and ``codes`` are tables that restate the header, ``loader`` finds and loads the
library, ``callbacks`` and ``arena`` give it buffers without Python, ``walk`` and ``decode``
turn full buffers into batches. When to start and stop is decided in ``msmon/recording``.
"""
