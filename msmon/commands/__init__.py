"""The command line: one module or folder per command, all named in ``main``.

A command is thin: it reads options, asks the daemon or another room, and shows the answer.
``parameters`` and ``connection`` hold the options that several commands have, ``answers`` the
way in which an answer is shown.
"""
