"""One npu-monitor run in this process: reading, filtering, measuring and shipping its records.

``session`` decides what happens when, ``intake`` what becomes of a batch.
"""
