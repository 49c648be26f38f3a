"""Targets: what records are converted into. One module per format."""
