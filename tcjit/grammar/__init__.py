"""What the user wrote: from text to a checked program with ranges."""
