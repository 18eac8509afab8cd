"""Programs, options and faults drawn at random, and how a failing program is shrunk."""
