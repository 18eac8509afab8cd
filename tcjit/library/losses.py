"""Losses, each the mean over its elements or samples; those of elements take any shape flattened to one dimension."""
from __future__ import annotations

MSE_LOSS = """
# The mean squared difference.
# X: (N), Y: (N); loss: a scalar.
# PyTorch: F.mse_loss(X, Y)
def mse_loss(float(N) X, float(N) Y) -> (float loss) {
    total +=! float32(X(n) - Y(n)) * (X(n) - Y(n))
    loss = total / N
}
"""

L1_LOSS = """
# The mean absolute difference.
# X: (N), Y: (N); loss: a scalar.
# PyTorch: F.l1_loss(X, Y)
def l1_loss(float(N) X, float(N) Y) -> (float loss) {
    total +=! float32(abs(X(n) - Y(n)))
    loss = total / N
}
"""

HUBER_LOSS = """
# Squared up to a difference of delta, straight beyond.
# X: (N), Y: (N), delta: scalar; loss: a scalar.
# PyTorch: F.huber_loss(X, Y, delta=delta)
def huber_loss(float(N) X, float(N) Y, float32 delta) -> (float loss) {
    total +=! (d <= delta) ? 0.5 * d * d : delta * (d - 0.5 * delta) where d = float32(abs(X(n) - Y(n)))
    loss = total / N
}
"""

SMOOTH_L1_LOSS = """
# The Huber loss divided by its threshold.
# X: (N), Y: (N), beta: scalar; loss: a scalar.
# PyTorch: F.smooth_l1_loss(X, Y, beta=beta)
def smooth_l1_loss(float(N) X, float(N) Y, float32 beta) -> (float loss) {
    total +=! (d < beta) ? 0.5 * d * d / beta : d - 0.5 * beta where d = float32(abs(X(n) - Y(n)))
    loss = total / N
}
"""

CROSS_ENTROPY = """
# The mean negative logarithm of the probability that each row's softmax gives its class.
# X: (N, C), Class: (N) with elements in 0:C; loss: a scalar.
# PyTorch: F.cross_entropy(X, Class)
def cross_entropy(float(N, C) X, int64(N) Class) -> (float loss) {
    top(n) max=! X(n, c)
    mass(n) +=! exp(float32(X(n, c) - top(n)))
    total +=! log(mass(n)) + top(n) - X(n, Class(n))
    loss = total / N
}
"""

SOFT_CROSS_ENTROPY = """
# The mean cross-entropy of each row's softmax against probabilities.
# X: (N, C), P: (N, C); loss: a scalar.
# PyTorch: F.cross_entropy(X, P)
def soft_cross_entropy(float(N, C) X, float(N, C) P) -> (float loss) {
    top(n) max=! X(n, c)
    mass(n) +=! exp(float32(X(n, c) - top(n)))
    total +=! P(n, c) * (log(mass(n)) + top(n) - X(n, c))
    loss = total / N
}
"""

NLL_LOSS = """
# The mean of the elements that the classes pick, negated.
# X: (N, C) of log-probabilities, Class: (N) with elements in 0:C; loss: a scalar.
# PyTorch: F.nll_loss(X, Class)
def nll_loss(float(N, C) X, int64(N) Class) -> (float loss) {
    total +=! float32(-X(n, Class(n)))
    loss = total / N
}
"""

BCE_LOSS = """
# The mean binary cross-entropy of probabilities; logarithms below -100 count as -100.
# P: (N) in 0..1, Y: (N) in 0..1; loss: a scalar.
# PyTorch: F.binary_cross_entropy(P, Y)
def bce_loss(float(N) P, float(N) Y) -> (float loss) {
    total +=! -(Y(n) * max(log(p), -100.0) + (1.0 - Y(n)) * max(log1p(-p), -100.0)) where p = float32(P(n))
    loss = total / N
}
"""

BCE_WITH_LOGITS_LOSS = """
# The mean binary cross-entropy of logits, without overflow.
# X: (N), Y: (N) in 0..1; loss: a scalar.
# PyTorch: F.binary_cross_entropy_with_logits(X, Y)
def bce_with_logits_loss(float(N) X, float(N) Y) -> (float loss) {
    total +=! max(x, 0.0) - x * Y(n) + log1p(exp(-abs(x))) where x = float32(X(n))
    loss = total / N
}
"""

KL_DIV_LOSS = """
# The mean over rows of the divergence of P from exp(X); a probability of 0 adds nothing.
# X: (N, C) of log-probabilities, P: (N, C) of probabilities; loss: a scalar.
# PyTorch: F.kl_div(X, P, reduction="batchmean")
def kl_div_loss(float(N, C) X, float(N, C) P) -> (float loss) {
    total +=! (p > 0.0) ? p * (log(p) - X(n, c)) : 0.0 where p = float32(P(n, c))
    loss = total / N
}
"""
