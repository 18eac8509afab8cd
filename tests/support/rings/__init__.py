"""Where kernels run and are watched: PoCL, oclgrind, CUDA text on the host, a driver's stub, a GPU."""
