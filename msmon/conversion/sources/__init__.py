"""Sources: exported files, read back into batches of records.

The files may be damaged or forged.
"""
