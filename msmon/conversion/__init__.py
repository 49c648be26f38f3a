"""Conversion of exported files: sources read them into batches, outputs write them anew."""
