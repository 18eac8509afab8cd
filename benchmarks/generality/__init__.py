"""A benchmark of operators that nobody tuned for: drawn at random, checked, timed beside eager PyTorch and ``torch.compile``."""
