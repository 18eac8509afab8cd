"""Elementwise functions, over tensors of any shape flattened to one dimension."""
from __future__ import annotations

RELU = """
# The rectifier.
# X: (N); Y: (N).
# PyTorch: F.relu(X)
def relu(float(N) X) -> (Y) {
    Y(n) = relu(X(n))
}
"""

LEAKY_RELU = """
# The rectifier with a slope below zero.
# X: (N), slope: scalar; Y: (N).
# PyTorch: F.leaky_relu(X, slope)
def leaky_relu(float(N) X, float32 slope) -> (float(N) Y) {
    Y(n) = (X(n) > 0.0) ? X(n) : slope * X(n)
}
"""

PRELU = """
# The rectifier with a slope of each channel's own below zero.
# X: (M, C), slope: (C); Y: (M, C).
# PyTorch: F.prelu(X, slope)
def prelu(float(M, C) X, float(C) slope) -> (Y) {
    Y(m, c) = (X(m, c) > 0.0) ? X(m, c) : slope(c) * X(m, c)
}
"""

ELU = """
# The exponential linear unit.
# X: (N), alpha: scalar; Y: (N).
# PyTorch: F.elu(X, alpha)
def elu(float(N) X, float32 alpha) -> (float(N) Y) {
    Y(n) = (X(n) > 0.0) ? X(n) : alpha * expm1(X(n))
}
"""

SELU = """
# The self-normalising exponential unit.
# X: (N); Y: (N).
# PyTorch: F.selu(X)
def selu(float(N) X) -> (Y) {
    Y(n) = 1.0507009873554805 * ((X(n) > 0.0) ? X(n) : 1.6732632423543772 * expm1(X(n)))
}
"""

GELU = """
# The Gaussian error unit, exact.
# X: (N); Y: (N).
# PyTorch: F.gelu(X)
def gelu(float(N) X) -> (Y) {
    Y(n) = 0.5 * X(n) * (1.0 + erf(X(n) * 0.7071067811865476))
}
"""

GELU_TANH = """
# The Gaussian error unit by its usual approximation.
# X: (N); Y: (N).
# PyTorch: F.gelu(X, approximate="tanh")
def gelu_tanh(float(N) X) -> (Y) {
    Y(n) = 0.5 * X(n) * (1.0 + tanh(0.7978845608028654 * (X(n) + 0.044715 * X(n) * X(n) * X(n))))
}
"""

SIGMOID = """
# The logistic function.
# X: (N); Y: (N).
# PyTorch: torch.sigmoid(X)
def sigmoid(float(N) X) -> (Y) {
    Y(n) = sigmoid(X(n))
}
"""

LOG_SIGMOID = """
# The logarithm of the logistic function; neither tail overflows.
# X: (N); Y: (N).
# PyTorch: F.logsigmoid(X)
def log_sigmoid(float(N) X) -> (Y) {
    Y(n) = min(X(n), 0.0) - log1p(exp(-abs(X(n))))
}
"""

TANH = """
# The hyperbolic tangent.
# X: (N); Y: (N).
# PyTorch: torch.tanh(X)
def tanh(float(N) X) -> (Y) {
    Y(n) = tanh(X(n))
}
"""

SILU = """
# The sigmoid-weighted linear unit, also called swish.
# X: (N); Y: (N).
# PyTorch: F.silu(X)
def silu(float(N) X) -> (Y) {
    Y(n) = X(n) * sigmoid(X(n))
}
"""

MISH = """
# The self-regularised unit x tanh(softplus(x)), softplus without overflow.
# X: (N); Y: (N).
# PyTorch: F.mish(X)
def mish(float(N) X) -> (Y) {
    Y(n) = X(n) * tanh(max(X(n), 0.0) + log1p(exp(-abs(X(n)))))
}
"""

SOFTPLUS = """
# The smooth rectifier log(1 + exp(x)), without overflow.
# X: (N); Y: (N).
# PyTorch: torch.logaddexp(X, torch.zeros_like(X))
def softplus(float(N) X) -> (Y) {
    Y(n) = max(X(n), 0.0) + log1p(exp(-abs(X(n))))
}
"""

SOFTSIGN = """
# A slower tanh: x / (1 + |x|).
# X: (N); Y: (N).
# PyTorch: F.softsign(X)
def softsign(float(N) X) -> (Y) {
    Y(n) = X(n) / (1.0 + abs(X(n)))
}
"""

HARDTANH = """
# The identity between two limits.
# X: (N), low, high: scalars; Y: (N).
# PyTorch: F.hardtanh(X, low, high)
def hardtanh(float(N) X, float low, float high) -> (Y) {
    Y(n) = clamp(X(n), low, high)
}
"""

HARDSIGMOID = """
# The logistic function by straight lines.
# X: (N); Y: (N).
# PyTorch: F.hardsigmoid(X)
def hardsigmoid(float(N) X) -> (Y) {
    Y(n) = clamp(X(n) + 3.0, 0.0, 6.0) / 6.0
}
"""

HARDSWISH = """
# The sigmoid-weighted linear unit by straight lines.
# X: (N); Y: (N).
# PyTorch: F.hardswish(X)
def hardswish(float(N) X) -> (Y) {
    Y(n) = X(n) * clamp(X(n) + 3.0, 0.0, 6.0) / 6.0
}
"""

BIAS_GELU = """
# A row's bias and the exact Gaussian error unit.
# X: (M, N), bias: (N); Y: (M, N).
# PyTorch: F.gelu(X + bias)
def bias_gelu(float(M, N) X, float(N) bias) -> (Y) {
    Y(m, n) = 0.5 * x * (1.0 + erf(x * 0.7071067811865476)) where x = X(m, n) + bias(n)
}
"""

SWIGLU = """
# A gate through the sigmoid-weighted linear unit, times a value.
# Gate: (N), X: (N); Y: (N).
# PyTorch: F.silu(Gate) * X
def swiglu(float(N) Gate, float(N) X) -> (Y) {
    Y(n) = Gate(n) * sigmoid(Gate(n)) * X(n)
}
"""
