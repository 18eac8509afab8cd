"""Studies, storages and searches that end badly."""
