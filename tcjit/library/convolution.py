"""Convolutions: the output starts as the bias, and each tap adds to it under the guard that its read falls inside the input.

A guard instead of a padded copy costs nothing where the compiler splits the interior off. Strides, paddings and dilations are ``int32``
scalars whose values are part of the compiled kernel.
"""
from __future__ import annotations

CONV1D = """
# A one-dimensional convolution with stride, zero padding and dilation.
# X: (N, C, L), Weight: (F, C, K), Bias: (F); Y: (N, F, (L + 2 padding - dilation (K - 1) - 1) / stride + 1).
# PyTorch: F.conv1d(X, Weight, Bias, stride, padding, dilation)
def conv1d(float(N, C, L) X, float(F, C, K) Weight, float(F) Bias, int32 stride, int32 padding, int32 dilation) -> (Y) {
    Y(n, f, l) = Bias(f)
        where n in 0:N, l in 0:(L + 2 * padding - dilation * (K - 1) - 1) / stride + 1
    Y(n, f, l) += ((x >= 0 && x < L) ? X(n, c, x) : 0.0) * Weight(f, c, k)
        where x = stride * l + dilation * k - padding
}
"""

GROUP_CONV1D = """
# A one-dimensional convolution in groups; channels are split by group, a free view of PyTorch's.
# X: (N, G, C, L), Weight: (G, F, C, K), Bias: (G, F); Y: (N, G, F, as in conv1d).
# PyTorch: F.conv1d(X.flatten(1, 2), Weight.flatten(0, 1), Bias.flatten(), stride, padding, dilation, X.shape[1]).unflatten(1, Bias.shape)
def group_conv1d(float(N, G, C, L) X, float(G, F, C, K) Weight, float(G, F) Bias,
                 int32 stride, int32 padding, int32 dilation) -> (Y) {
    Y(n, g, f, l) = Bias(g, f)
        where n in 0:N, l in 0:(L + 2 * padding - dilation * (K - 1) - 1) / stride + 1
    Y(n, g, f, l) += ((x >= 0 && x < L) ? X(n, g, c, x) : 0.0) * Weight(g, f, c, k)
        where x = stride * l + dilation * k - padding
}
"""

CONV2D = """
# A two-dimensional convolution with stride, zero padding and dilation.
# X: (N, C, H, W), Weight: (F, C, KH, KW), Bias: (F); Y: (N, F, (H + 2 ph - dh (KH - 1) - 1) / sh + 1, likewise for W).
# PyTorch: F.conv2d(X, Weight, Bias, (sh, sw), (ph, pw), (dh, dw))
def conv2d(float(N, C, H, W) X, float(F, C, KH, KW) Weight, float(F) Bias,
           int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw) -> (Y) {
    Y(n, f, h, w) = Bias(f)
        where n in 0:N,
              h in 0:(H + 2 * ph - dh * (KH - 1) - 1) / sh + 1,
              w in 0:(W + 2 * pw - dw * (KW - 1) - 1) / sw + 1
    Y(n, f, h, w) += ((y >= 0 && y < H && x >= 0 && x < W) ? X(n, c, y, x) : 0.0) * Weight(f, c, kh, kw)
        where y = sh * h + dh * kh - ph, x = sw * w + dw * kw - pw
}
"""

CONV2D_VALID = """
# A two-dimensional convolution, unit stride, no padding, no bias: the shortest form and the fastest.
# X: (N, C, H, W), Weight: (F, C, KH, KW); Y: (N, F, H - KH + 1, W - KW + 1).
# PyTorch: F.conv2d(X, Weight)
def conv2d_valid(float(N, C, H, W) X, float(F, C, KH, KW) Weight) -> (Y) {
    Y(n, f, h, w) +=! X(n, c, h + kh, w + kw) * Weight(f, c, kh, kw)
}
"""

GROUP_CONV2D = """
# A two-dimensional convolution in groups; channels are split by group, a free view of PyTorch's.
# X: (N, G, C, H, W), Weight: (G, F, C, KH, KW), Bias: (G, F); Y: (N, G, F, as in conv2d).
# PyTorch: F.conv2d(X.flatten(1, 2), Weight.flatten(0, 1), Bias.flatten(), (sh, sw), (ph, pw), (dh, dw), len(Bias)).unflatten(1, Bias.shape)
def group_conv2d(float(N, G, C, H, W) X, float(G, F, C, KH, KW) Weight, float(G, F) Bias,
                 int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw) -> (Y) {
    Y(n, g, f, h, w) = Bias(g, f)
        where n in 0:N,
              h in 0:(H + 2 * ph - dh * (KH - 1) - 1) / sh + 1,
              w in 0:(W + 2 * pw - dw * (KW - 1) - 1) / sw + 1
    Y(n, g, f, h, w) += ((y >= 0 && y < H && x >= 0 && x < W) ? X(n, g, c, y, x) : 0.0) * Weight(g, f, c, kh, kw)
        where y = sh * h + dh * kh - ph, x = sw * w + dw * kw - pw
}
"""

CONV2D_GROUPS = """
# A two-dimensional convolution in groups, in PyTorch's own layout: filter f reads the channels of group f * groups / F.
# X: (N, C, H, W), Weight: (F, C / groups, KH, KW), Bias: (F); Y: (N, F, as in conv2d).
# PyTorch: F.conv2d(X, Weight, Bias, (sh, sw), (ph, pw), (dh, dw), groups)
def conv2d_groups(float(N, C, H, W) X, float(F, D, KH, KW) Weight, float(F) Bias,
                  int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw, int32 groups) -> (Y) {
    Y(n, f, h, w) = Bias(f)
        where n in 0:N,
              h in 0:(H + 2 * ph - dh * (KH - 1) - 1) / sh + 1,
              w in 0:(W + 2 * pw - dw * (KW - 1) - 1) / sw + 1
    Y(n, f, h, w) += ((y >= 0 && y < H && x >= 0 && x < W) ? X(n, f * groups / F * D + d, y, x) : 0.0) * Weight(f, d, kh, kw)
        where y = sh * h + dh * kh - ph, x = sw * w + dw * kw - pw
}
"""

DEPTHWISE_CONV2D = """
# A two-dimensional convolution of each channel with its own filter.
# X: (N, C, H, W), Weight: (C, KH, KW), Bias: (C); Y: (N, C, as in conv2d).
# PyTorch: F.conv2d(X, Weight[:, None], Bias, (sh, sw), (ph, pw), (dh, dw), len(Bias))
def depthwise_conv2d(float(N, C, H, W) X, float(C, KH, KW) Weight, float(C) Bias,
                     int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw) -> (Y) {
    Y(n, c, h, w) = Bias(c)
        where n in 0:N,
              h in 0:(H + 2 * ph - dh * (KH - 1) - 1) / sh + 1,
              w in 0:(W + 2 * pw - dw * (KW - 1) - 1) / sw + 1
    Y(n, c, h, w) += ((y >= 0 && y < H && x >= 0 && x < W) ? X(n, c, y, x) : 0.0) * Weight(c, kh, kw)
        where y = sh * h + dh * kh - ph, x = sw * w + dw * kw - pw
}
"""

POINTWISE_CONV2D = """
# A convolution with 1 x 1 filters: a matrix product over channels at each pixel.
# X: (N, C, H, W), Weight: (F, C), Bias: (F); Y: (N, F, H, W).
# PyTorch: F.conv2d(X, Weight[:, :, None, None], Bias)
def pointwise_conv2d(float(N, C, H, W) X, float(F, C) Weight, float(F) Bias) -> (Y) {
    Y(n, f, h, w) +=! X(n, c, h, w) * Weight(f, c)
    Y(n, f, h, w) = Y(n, f, h, w) + Bias(f)
}
"""

CONV_TRANSPOSE2D = """
# The adjoint of a two-dimensional convolution: an output pixel gathers the taps whose stride divides their distance.
# X: (N, C, H, W), Weight: (C, F, KH, KW), Bias: (F); Y: (N, F, (H - 1) sh - 2 ph + dh (KH - 1) + 1, likewise for W).
# PyTorch: F.conv_transpose2d(X, Weight, Bias, (sh, sw), (ph, pw), 0, 1, (dh, dw))
def conv_transpose2d(float(N, C, H, W) X, float(C, F, KH, KW) Weight, float(F) Bias,
                     int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw) -> (Y) {
    Y(n, f, h, w) = Bias(f)
        where n in 0:N,
              h in 0:(H - 1) * sh - 2 * ph + dh * (KH - 1) + 1,
              w in 0:(W - 1) * sw - 2 * pw + dw * (KW - 1) + 1
    Y(n, f, h, w) += (y >= 0 && y < sh * H && y % sh == 0 && x >= 0 && x < sw * W && x % sw == 0)
            ? X(n, c, y / sh, x / sw) * Weight(c, f, kh, kw) : 0.0
        where y = h + ph - dh * kh, x = w + pw - dw * kw
}
"""
