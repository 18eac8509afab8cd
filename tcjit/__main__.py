"""``python -m tcjit``."""

from __future__ import annotations

from tcjit.cli import main

if __name__ == "__main__":
    main()
