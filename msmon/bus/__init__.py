"""The wire: messages and their encoding, sockets, keys and the client.

Knows no daemon and no agent.
"""
