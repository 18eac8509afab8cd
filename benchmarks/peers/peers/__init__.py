"""One module per peer: ``versions()``, ``build(op, arguments) -> callable`` and, where needed, ``prepare``, ``sync`` and ``to_numpy``."""
