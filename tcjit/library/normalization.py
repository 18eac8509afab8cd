"""Normalisation: statistics in a wide type, two passes over the data for the variance (one pass loses it to cancellation)."""
from __future__ import annotations

LAYER_NORM = """
# Each row to mean 0 and variance 1, then scaled and shifted.
# X: (M, N), gamma: (N), beta: (N), eps: scalar; Y: (M, N).
# PyTorch: F.layer_norm(X, gamma.shape, gamma, beta, eps)
def layer_norm(float(M, N) X, float(N) gamma, float(N) beta, float32 eps) -> (float(M, N) Y) {
    mean(m) +=! float32(X(m, n))
    mean(m) = mean(m) / N
    scale(m) +=! (X(m, n) - mean(m)) * (X(m, n) - mean(m))
    scale(m) = rsqrt(scale(m) / N + eps)
    Y(m, n) = (X(m, n) - mean(m)) * scale(m) * gamma(n) + beta(n)
}
"""

RMS_NORM = """
# Each row divided by its root mean square, then scaled.
# X: (M, N), gamma: (N), eps: scalar; Y: (M, N).
# PyTorch: F.rms_norm(X, gamma.shape, gamma, eps)
def rms_norm(float(M, N) X, float(N) gamma, float32 eps) -> (float(M, N) Y) {
    scale(m) +=! float32(X(m, n)) * X(m, n)
    scale(m) = rsqrt(scale(m) / N + eps)
    Y(m, n) = X(m, n) * scale(m) * gamma(n)
}
"""

GROUP_NORM = """
# Each group of channels to mean 0 and variance 1; channels are split by group, a free view of PyTorch's.
# X: (N, G, C, H, W), gamma: (G, C), beta: (G, C), eps: scalar; Y: (N, G, C, H, W).
# PyTorch: F.group_norm(X.flatten(1, 2), len(gamma), gamma.flatten(), beta.flatten(), eps).unflatten(1, gamma.shape)
def group_norm(float(N, G, C, H, W) X, float(G, C) gamma, float(G, C) beta, float32 eps) -> (float(N, G, C, H, W) Y) {
    mean(n, g) +=! float32(X(n, g, c, h, w))
    mean(n, g) = mean(n, g) / C / H / W
    scale(n, g) +=! (X(n, g, c, h, w) - mean(n, g)) * (X(n, g, c, h, w) - mean(n, g))
    scale(n, g) = rsqrt(scale(n, g) / C / H / W + eps)
    Y(n, g, c, h, w) = (X(n, g, c, h, w) - mean(n, g)) * scale(n, g) * gamma(g, c) + beta(g, c)
}
"""

INSTANCE_NORM = """
# Each channel of each sample to mean 0 and variance 1, then scaled and shifted by channel.
# X: (N, C, H, W), gamma: (C), beta: (C), eps: scalar; Y: (N, C, H, W).
# PyTorch: F.instance_norm(X, None, None, gamma, beta, True, 0.0, eps)
def instance_norm(float(N, C, H, W) X, float(C) gamma, float(C) beta, float32 eps) -> (float(N, C, H, W) Y) {
    mean(n, c) +=! float32(X(n, c, h, w))
    mean(n, c) = mean(n, c) / H / W
    scale(n, c) +=! (X(n, c, h, w) - mean(n, c)) * (X(n, c, h, w) - mean(n, c))
    scale(n, c) = rsqrt(scale(n, c) / H / W + eps)
    Y(n, c, h, w) = (X(n, c, h, w) - mean(n, c)) * scale(n, c) * gamma(c) + beta(c)
}
"""

BATCH_NORM_TRAINING = """
# Each channel to mean 0 and variance 1 over the batch; its mean and (biased) variance are returned for the running statistics.
# X: (N, C, H, W), gamma: (C), beta: (C), eps: scalar; Y: (N, C, H, W), mean: (C), var: (C).
# PyTorch: F.batch_norm(X, None, None, gamma, beta, True, 0.0, eps), X.mean((0, 2, 3)), X.var((0, 2, 3), correction=0)
def batch_norm_training(float(N, C, H, W) X, float(C) gamma, float(C) beta, float32 eps) -> (float(N, C, H, W) Y, mean, var) {
    mean(c) +=! float32(X(n, c, h, w))
    mean(c) = mean(c) / N / H / W
    var(c) +=! (X(n, c, h, w) - mean(c)) * (X(n, c, h, w) - mean(c))
    var(c) = var(c) / N / H / W
    scale(c) = rsqrt(var(c) + eps)
    Y(n, c, h, w) = (X(n, c, h, w) - mean(c)) * scale(c) * gamma(c) + beta(c)
}
"""

BATCH_NORM_INFERENCE = """
# Each channel normalised by given statistics, folded into one scale and one shift.
# X: (N, C, H, W), mean, var, gamma, beta: (C), eps: scalar; Y: (N, C, H, W).
# PyTorch: F.batch_norm(X, mean, var, gamma, beta, False, 0.0, eps)
def batch_norm_inference(float(N, C, H, W) X, float32(C) mean, float32(C) var, float(C) gamma, float(C) beta,
                         float32 eps) -> (float(N, C, H, W) Y) {
    scale(c) = gamma(c) * rsqrt(var(c) + eps)
    shift(c) = beta(c) - mean(c) * scale(c)
    Y(n, c, h, w) = X(n, c, h, w) * scale(c) + shift(c)
}
"""

L2_NORMALIZE = """
# Each row divided by its Euclidean length, or by eps where that is less.
# X: (M, N), eps: scalar; Y: (M, N).
# PyTorch: F.normalize(X, dim=1, eps=eps)
def l2_normalize(float(M, N) X, float32 eps) -> (float(M, N) Y) {
    length(m) +=! float32(X(m, n)) * X(m, n)
    length(m) = max(sqrt(length(m)), eps)
    Y(m, n) = X(m, n) / length(m)
}
"""
