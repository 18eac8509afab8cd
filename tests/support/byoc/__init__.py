"""Models and graphs for the partitioner."""
