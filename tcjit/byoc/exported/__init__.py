"""The parts of an exported folder: kernels as C, the library around them, the graph as JSON, compilers."""
