"""Elements moved, not changed."""
from __future__ import annotations

TRANSPOSE = """
# The transpose of a matrix.
# X: (M, N); Y: (N, M).
# PyTorch: X.T
def transpose(float(M, N) X) -> (Y) {
    Y(n, m) = X(m, n)
}
"""

SWAP_INNER_AXES = """
# The two middle axes of four exchanged, as when attention's heads are split off.
# X: (A, B, C, D); Y: (A, C, B, D).
# PyTorch: X.permute(0, 2, 1, 3)
def swap_inner_axes(float(A, B, C, D) X) -> (Y) {
    Y(a, c, b, d) = X(a, b, c, d)
}
"""

CHANNELS_LAST = """
# Channels moved behind the pixels.
# X: (N, C, H, W); Y: (N, H, W, C).
# PyTorch: X.permute(0, 2, 3, 1)
def channels_last(float(N, C, H, W) X) -> (Y) {
    Y(n, h, w, c) = X(n, c, h, w)
}
"""

CHANNELS_FIRST = """
# Channels moved before the pixels.
# X: (N, H, W, C); Y: (N, C, H, W).
# PyTorch: X.permute(0, 3, 1, 2)
def channels_first(float(N, H, W, C) X) -> (Y) {
    Y(n, c, h, w) = X(n, h, w, c)
}
"""

CONCAT_ROWS = """
# One matrix above another.
# X: (M, N), Y: (P, N); Z: (M + P, N).
# PyTorch: torch.cat((X, Y))
def concat_rows(float(M, N) X, float(P, N) Y) -> (Z) {
    Z(i, n) = (i < M) ? X(i, n) : Y(i - M, n) where i in 0:M + P
}
"""

CONCAT_COLUMNS = """
# One matrix beside another.
# X: (M, N), Y: (M, P); Z: (M, N + P).
# PyTorch: torch.cat((X, Y), 1)
def concat_columns(float(M, N) X, float(M, P) Y) -> (Z) {
    Z(m, j) = (j < N) ? X(m, j) : Y(m, j - N) where j in 0:N + P
}
"""

PAD2D = """
# A margin of one value around each plane.
# X: (N, C, H, W), left, right, top, bottom, value: scalars; Y: (N, C, top + H + bottom, left + W + right).
# PyTorch: F.pad(X, (left, right, top, bottom), value=value)
def pad2d(float(N, C, H, W) X, int32 left, int32 right, int32 top, int32 bottom, float value) -> (Y) {
    Y(n, c, h, w) = (h >= top && h < top + H && w >= left && w < left + W) ? X(n, c, h - top, w - left) : value
        where h in 0:top + H + bottom, w in 0:left + W + right
}
"""

FLIP_COLUMNS = """
# The columns in reverse order.
# X: (M, N); Y: (M, N).
# PyTorch: X.flip(1)
def flip_columns(float(M, N) X) -> (Y) {
    Y(m, n) = X(m, N - 1 - n)
}
"""

LOWER_TRIANGLE = """
# The elements on and below the diagonal, zeros above.
# X: (M, N); Y: (M, N).
# PyTorch: X.tril()
def lower_triangle(float(M, N) X) -> (Y) {
    Y(m, n) = (n <= m) ? X(m, n) : 0.0
}
"""

UPSAMPLE_NEAREST2D = """
# Each pixel repeated r times along both axes.
# X: (N, C, H, W), r: scalar; Y: (N, C, r H, r W).
# PyTorch: F.interpolate(X, scale_factor=r, mode="nearest")
def upsample_nearest2d(float(N, C, H, W) X, int32 r) -> (Y) {
    Y(n, c, h, w) = X(n, c, h / r, w / r) where h in 0:r * H, w in 0:r * W
}
"""

PIXEL_SHUFFLE = """
# Channels dealt out over r x r pixels.
# X: (N, C, H, W) with r r dividing C, r: scalar; Y: (N, C / (r r), r H, r W).
# PyTorch: F.pixel_shuffle(X, r)
def pixel_shuffle(float(N, C, H, W) X, int32 r) -> (Y) {
    Y(n, c, h, w) = X(n, (c * r + h % r) * r + w % r, h / r, w / r)
        where c in 0:C / r / r, h in 0:r * H, w in 0:r * W
}
"""

UNFOLD2D = """
# The window under each position of a kernel (im2col), zero padding.
# X: (N, C, H, W), kernel, stride, padding: kh kw sh sw ph pw; Y: (N, C, kh, kw, (H + 2 ph - kh) / sh + 1, (W + 2 pw - kw) / sw + 1).
# PyTorch: F.unfold(X, (kh, kw), 1, (ph, pw), (sh, sw)).view(*X.shape[:2], kh, kw, (X.shape[2] + 2 * ph - kh) // sh + 1, -1)
def unfold2d(float(N, C, H, W) X, int32 kh, int32 kw, int32 sh, int32 sw, int32 ph, int32 pw) -> (Y) {
    Y(n, c, i, j, h, w) = (y >= 0 && y < H && x >= 0 && x < W) ? X(n, c, y, x) : 0.0
        where i in 0:kh, j in 0:kw,
              h in 0:(H + 2 * ph - kh) / sh + 1, w in 0:(W + 2 * pw - kw) / sw + 1,
              y = sh * h + i - ph, x = sw * w + j - pw
}
"""
