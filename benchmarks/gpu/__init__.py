"""What tcjit's kernels do on an NVIDIA GPU, beside PyTorch and Triton; ``benchmarks/gpu.py`` is the command."""
