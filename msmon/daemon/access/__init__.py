"""Who may do what: roles, allowed keys, authentication of peers, and the audit log."""
