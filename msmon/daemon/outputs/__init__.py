"""Outputs: a sink with its queue, its thread or process, and each session's state in it."""
