"""MSPTI as C sees it.

Prototypes, finding and loading the library, native callbacks, buffers, and decoding them.
"""
