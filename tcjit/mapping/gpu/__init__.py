"""Plans for a GPU: which threads compute which instances of a group of statements."""
