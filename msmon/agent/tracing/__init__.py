"""Detailed traces: the framework's own profiler, driven from inside the training process."""
