"""Conversion of exported files: sources that read them, outputs that write them anew."""
