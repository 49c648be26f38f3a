"""Who may do what, and how much of it.

``authentication`` says who a peer is, by the kernel's word or by its key, and ``identity`` which
process it is. ``roles`` says which messages it may send, ``shares`` how much it may take, and
``approvals`` where its files may go. ``descriptors`` and ``routing_ids`` protect libzmq from what
would abort it. ``audit`` writes down what was commanded, on the lines of ``audit_lines``.
"""
