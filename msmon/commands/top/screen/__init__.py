"""The full screen of ``msmon top``: it draws a model, and keys change what is looked at.

=============  ===================================================================================
``view``       what is looked at, and which rows that are
``keys``       what a key changes
``drawing``    the screen as lines of text
``overlays``   what lies over the table: help, and verdicts in full
``key_codes``  the bytes that a terminal sends for a key
``terminal``   the terminal, and how it is left as it was
``loop``       keys, draw, wait
=============  ===================================================================================
"""
