"""The wire between agents, daemon and command line.

``messages`` lists all messages, ``codec`` turns them into frames and back, ``sockets`` makes
every socket, ``endpoints`` and ``keys`` say where a daemon is and how it is trusted, ``client``
asks one question. What a daemon or an agent does with a message is in their own rooms.
"""
