"""Convolution by minimal filtering (Lavin and Gray, 2016): F(2 x 2, 3 x 3), 16 products for 4 outputs where the direct form takes 36."""
from __future__ import annotations

WINOGRAD_CONV2D = """
# A 3 x 3 convolution, unit stride, zero padding: filters and tiles are transformed, multiplied pointwise, transformed back.
# X: (N, C, H, W), Weight: (F, C, 3, 3); Y: (N, F, H + 2 ph - 2, W + 2 pw - 2).
# PyTorch: F.conv2d(X, Weight, None, 1, (ph, pw))
def winograd_conv2d(float(N, C, H, W) X, float(F, C, 3, 3) Weight, int32 ph, int32 pw) -> (Y) {
    # the filter's transform, 4 x 3: rows (1 0 0), (1 1 1)/2, (1 -1 1)/2, (0 0 1)
    G(i, k) = (i == 1 || i == 2) ? ((i == 2 && k == 1) ? -0.5 : 0.5) : ((i == 0 && k == 0 || i == 3 && k == 2) ? 1.0 : 0.0)
        where i in 0:4, k in 0:3
    # the tile's, 4 x 4: rows (1 0 -1 0), (0 1 1 0), (0 -1 1 0), (0 1 0 -1)
    D(i, k) = (i == k && i < 3 || i == 1 && k == 2 || i == 3 && k == 1) ? 1.0
            : ((i == 0 && k == 2 || i == 2 && k == 1 || i == 3 && k == 3) ? -1.0 : 0.0)
        where i in 0:4, k in 0:4
    # the result's, 2 x 4: rows (1 1 1 0), (0 1 -1 -1)
    A(p, i) = (p == 0 && i < 3 || p == 1 && i == 1) ? 1.0 : ((p == 1 && i >= 2) ? -1.0 : 0.0)
        where p in 0:2, i in 0:4
    U(f, c, i, j) +=! G(i, k) * Weight(f, c, k, l) * G(j, l)
    V(n, c, s, t, i, j) +=! (y >= 0 && y < H && x >= 0 && x < W) ? D(i, k) * X(n, c, y, x) * D(j, l) : 0.0
        where s in 0:(H + 2 * ph - 1) / 2, t in 0:(W + 2 * pw - 1) / 2, y = 2 * s + k - ph, x = 2 * t + l - pw
    M(n, f, s, t, i, j) +=! U(f, c, i, j) * V(n, c, s, t, i, j)
    T(n, f, s, t, p, q) +=! A(p, i) * M(n, f, s, t, i, j) * A(q, j)
    Y(n, f, h, w) = float(T(n, f, h / 2, w / 2, h % 2, w % 2))
        where h in 0:H + 2 * ph - 2, w in 0:W + 2 * pw - 2
}
"""
