"""Machine code of GPU kernels, without a GPU."""
