"""Pooling over windows; a window that hangs over the edge reads under a guard."""
from __future__ import annotations

MAX_POOL1D = """
# The greatest of each window; padding never wins.
# X: (N, C, L), kernel, stride, padding, dilation: scalars; Y: (N, C, (L + 2 padding - dilation (kernel - 1) - 1) / stride + 1).
# PyTorch: F.max_pool1d(X, kernel, stride, padding, dilation)
def max_pool1d(float(N, C, L) X, int32 kernel, int32 stride, int32 padding, int32 dilation) -> (Y) {
    Y(n, c, l) max=! (x >= 0 && x < L) ? X(n, c, x) : -infinity()
        where l in 0:(L + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1,
              k in 0:kernel,
              x = stride * l + dilation * k - padding
}
"""

MAX_POOL2D = """
# The greatest of each window; padding never wins.
# X: (N, C, H, W), kernel, stride, padding, dilation: kh kw sh sw ph pw dh dw; Y: (N, C, (H + 2 ph - dh (kh - 1) - 1) / sh + 1, ...).
# PyTorch: F.max_pool2d(X, (kh, kw), (sh, sw), (ph, pw), (dh, dw))
def max_pool2d(float(N, C, H, W) X, int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw, int32 dh, int32 dw) -> (Y) {
    Y(n, c, h, w) max=! (y >= 0 && y < H && x >= 0 && x < W) ? X(n, c, y, x) : -infinity()
        where h in 0:(H + 2 * ph - dh * (kh - 1) - 1) / sh + 1,
              w in 0:(W + 2 * pw - dw * (kw - 1) - 1) / sw + 1,
              i in 0:kh, j in 0:kw,
              y = sh * h + dh * i - ph, x = sw * w + dw * j - pw
}
"""

AVG_POOL2D = """
# The mean of each window, padding counted as zeros.
# X: (N, C, H, W), kernel, stride, padding: kh kw sh sw ph pw; Y: (N, C, (H + 2 ph - kh) / sh + 1, (W + 2 pw - kw) / sw + 1).
# PyTorch: F.avg_pool2d(X, (kh, kw), (sh, sw), (ph, pw))
def avg_pool2d(float(N, C, H, W) X, int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw) -> (Y) {
    Total(n, c, h, w) +=! (y >= 0 && y < H && x >= 0 && x < W) ? float32(X(n, c, y, x)) : 0.0
        where h in 0:(H + 2 * ph - kh) / sh + 1,
              w in 0:(W + 2 * pw - kw) / sw + 1,
              i in 0:kh, j in 0:kw,
              y = sh * h + i - ph, x = sw * w + j - pw
    Y(n, c, h, w) = float(Total(n, c, h, w) / (kh * kw))
}
"""

AVG_POOL2D_INSIDE = """
# The mean of the part of each window that lies inside the input.
# X: (N, C, H, W), kernel, stride, padding: kh kw sh sw ph pw; Y: (N, C, (H + 2 ph - kh) / sh + 1, (W + 2 pw - kw) / sw + 1).
# PyTorch: F.avg_pool2d(X, (kh, kw), (sh, sw), (ph, pw), count_include_pad=False)
def avg_pool2d_inside(float(N, C, H, W) X, int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw) -> (Y) {
    Area(h, w) +=! (y >= 0 && y < H && x >= 0 && x < W) ? 1 : 0
        where h in 0:(H + 2 * ph - kh) / sh + 1,
              w in 0:(W + 2 * pw - kw) / sw + 1,
              i in 0:kh, j in 0:kw,
              y = sh * h + i - ph, x = sw * w + j - pw
    Total(n, c, h, w) +=! (y >= 0 && y < H && x >= 0 && x < W) ? float32(X(n, c, y, x)) : 0.0
        where h in 0:(H + 2 * ph - kh) / sh + 1,
              w in 0:(W + 2 * pw - kw) / sw + 1,
              i in 0:kh, j in 0:kw,
              y = sh * h + i - ph, x = sw * w + j - pw
    Y(n, c, h, w) = float(Total(n, c, h, w) / Area(h, w))
}
"""

GLOBAL_AVG_POOL2D = """
# The mean of each channel's plane.
# X: (N, C, H, W); Y: (N, C).
# PyTorch: X.mean((2, 3))
def global_avg_pool2d(float(N, C, H, W) X) -> (float(N, C) Y) {
    Total(n, c) +=! float32(X(n, c, h, w))
    Y(n, c) = Total(n, c) / H / W
}
"""

ADAPTIVE_AVG_POOL2D = """
# The mean over oh x ow bins that cover the plane; neighbours overlap by a row where oh does not divide H.
# X: (N, C, H, W), oh, ow: scalars; Y: (N, C, oh, ow).
# PyTorch: F.adaptive_avg_pool2d(X, (oh, ow))
def adaptive_avg_pool2d(float(N, C, H, W) X, int32 oh, int32 ow) -> (Y) {
    Area(h, w) +=! (y >= h * H / oh && oh * y < (h + 1) * H && x >= w * W / ow && ow * x < (w + 1) * W) ? 1 : 0
        where h in 0:oh, w in 0:ow, y in 0:H, x in 0:W
    Total(n, c, h, w) +=! (y >= h * H / oh && oh * y < (h + 1) * H && x >= w * W / ow && ow * x < (w + 1) * W)
            ? float32(X(n, c, y, x)) : 0.0
        where h in 0:oh, w in 0:ow
    Y(n, c, h, w) = float(Total(n, c, h, w) / Area(h, w))
}
"""
