"""Who may do what, and how much of it.

``authentication`` says who a peer is (the kernel's word, or its key), ``roles`` which messages
it may send, ``shares`` how much it may take, ``approvals`` where its files may go. ``audit``
writes down what was commanded.
"""
