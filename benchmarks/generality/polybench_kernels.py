"""Kernels of PolyBench 4.2 that the notation expresses, from their mathematical definitions: in the notation, and as plain loops in C.

In C an array has its sizes in its type, and results are arrays of their own, as in the notation. One call of a stencil is two steps.
"""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """``inputs`` and ``outputs``: names with dimensions, ``A NI NK``; ``sizes``: the data sets MINI, MEDIUM and LARGE."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: dict[str, tuple[int, int, int]]
    body: str
    loops: str

    def text(self, name: str) -> str:
        """The def."""
        given = ", ".join(f"double({','.join(dims)}) {tensor}" for tensor, *dims in map(str.split, self.inputs))
        returned = ", ".join(output.split()[0] for output in self.outputs)
        return f"def {name}({given}) -> ({returned}) {{{self.body.rstrip()}\n}}\n"

    def c(self) -> str:
        """``void run(inputs, outputs)`` for sizes that are macros."""
        arrays = [f"const double {array(spec)}" for spec in self.inputs] + [f"double {array(spec)}" for spec in self.outputs]
        return f"#include <math.h>\nvoid run({', '.join(arrays)})\n{{{self.loops.rstrip()}\n}}\n"

    def shape(self, spec: str, size: dict[str, int]) -> tuple[int, ...]:
        return tuple(size[dim] for dim in spec.split()[1:])


def array(spec: str) -> str:
    name, first, *more = spec.split()
    return f"{name}[restrict {first}]" + "".join(f"[{dim}]" for dim in more)


NI_NJ_NK = {"NI": (20, 200, 1000), "NJ": (25, 220, 1100), "NK": (30, 240, 1200)}
M_N = {"M": (38, 390, 1900), "N": (42, 410, 2100)}
SYMMETRIC = {"M": (20, 200, 1000), "N": (30, 240, 1200)}
STATISTICS = {"M": (28, 240, 1200), "N": (32, 260, 1400)}
SQUARE = {"N": (40, 400, 2000)}

KERNELS: dict[str, Kernel] = {}


def kernel(name: str, inputs: str, outputs: str, sizes: dict[str, tuple[int, int, int]], body: str, loops: str) -> None:
    KERNELS[name] = Kernel(tuple(inputs.split(", ")), tuple(outputs.split(", ")), sizes, body, loops)


kernel(
    "gemm", "A NI NK, B NK NJ, C NI NJ", "O NI NJ", NI_NJ_NK,
    """
    O(i,j) = 1.2 * C(i,j)
    O(i,j) += 1.5 * A(i,k) * B(k,j)""",
    """
    for (int i = 0; i < NI; i++) {
        for (int j = 0; j < NJ; j++) O[i][j] = 1.2 * C[i][j];
        for (int k = 0; k < NK; k++)
            for (int j = 0; j < NJ; j++) O[i][j] += 1.5 * A[i][k] * B[k][j];
    }""",
)  # fmt: skip
kernel(
    "two_mm", "A NI NK, B NK NJ, C NJ NL, D NI NL", "O NI NL",
    {"NI": (16, 180, 800), "NJ": (18, 190, 900), "NK": (22, 210, 1100), "NL": (24, 220, 1200)},
    """
    T(i,j) +=! 1.5 * A(i,k) * B(k,j)
    O(i,l) = 1.2 * D(i,l)
    O(i,l) += T(i,j) * C(j,l)""",
    """
    static double T[NI][NJ];
    for (int i = 0; i < NI; i++)
        for (int j = 0; j < NJ; j++) {
            T[i][j] = 0;
            for (int k = 0; k < NK; k++) T[i][j] += 1.5 * A[i][k] * B[k][j];
        }
    for (int i = 0; i < NI; i++)
        for (int l = 0; l < NL; l++) {
            O[i][l] = 1.2 * D[i][l];
            for (int j = 0; j < NJ; j++) O[i][l] += T[i][j] * C[j][l];
        }""",
)  # fmt: skip
kernel(
    "three_mm", "A NI NK, B NK NJ, C NJ NM, D NM NL", "O NI NL",
    {"NI": (16, 180, 800), "NJ": (18, 190, 900), "NK": (20, 200, 1000), "NL": (22, 210, 1100), "NM": (24, 220, 1200)},
    """
    E(i,j) +=! A(i,k) * B(k,j)
    F(j,l) +=! C(j,m) * D(m,l)
    O(i,l) +=! E(i,j) * F(j,l)""",
    """
    static double E[NI][NJ], F[NJ][NL];
    for (int i = 0; i < NI; i++)
        for (int j = 0; j < NJ; j++) {
            E[i][j] = 0;
            for (int k = 0; k < NK; k++) E[i][j] += A[i][k] * B[k][j];
        }
    for (int j = 0; j < NJ; j++)
        for (int l = 0; l < NL; l++) {
            F[j][l] = 0;
            for (int m = 0; m < NM; m++) F[j][l] += C[j][m] * D[m][l];
        }
    for (int i = 0; i < NI; i++)
        for (int l = 0; l < NL; l++) {
            O[i][l] = 0;
            for (int j = 0; j < NJ; j++) O[i][l] += E[i][j] * F[j][l];
        }""",
)  # fmt: skip
kernel(
    "atax", "A M N, x N", "y N", M_N,
    """
    t(i) +=! A(i,j) * x(j)
    y(j) +=! A(i,j) * t(i)""",
    """
    for (int j = 0; j < N; j++) y[j] = 0;
    for (int i = 0; i < M; i++) {
        double t = 0;
        for (int j = 0; j < N; j++) t += A[i][j] * x[j];
        for (int j = 0; j < N; j++) y[j] += A[i][j] * t;
    }""",
)  # fmt: skip
kernel(
    "bicg", "A N M, p M, r N", "s M, q N", M_N,
    """
    s(j) +=! r(i) * A(i,j)
    q(i) +=! A(i,j) * p(j)""",
    """
    for (int j = 0; j < M; j++) s[j] = 0;
    for (int i = 0; i < N; i++) {
        q[i] = 0;
        for (int j = 0; j < M; j++) {
            s[j] += r[i] * A[i][j];
            q[i] += A[i][j] * p[j];
        }
    }""",
)  # fmt: skip
kernel(
    "mvt", "A N N, x1 N, x2 N, b1 N, b2 N", "o1 N, o2 N", SQUARE,
    """
    o1(i) = x1(i)
    o1(i) += A(i,j) * b1(j)
    o2(i) = x2(i)
    o2(i) += A(j,i) * b2(j)""",
    """
    for (int i = 0; i < N; i++) {
        o1[i] = x1[i];
        for (int j = 0; j < N; j++) o1[i] += A[i][j] * b1[j];
    }
    for (int i = 0; i < N; i++) {
        o2[i] = x2[i];
        for (int j = 0; j < N; j++) o2[i] += A[j][i] * b2[j];
    }""",
)  # fmt: skip
kernel(
    "gemver", "A N N, u1 N, v1 N, u2 N, v2 N, y N, z N", "B N N, x N, w N", SQUARE,
    """
    B(i,j) = A(i,j) + u1(i) * v1(j) + u2(i) * v2(j)
    x(i) = z(i)
    x(i) += 1.2 * B(j,i) * y(j)
    w(i) +=! 1.5 * B(i,j) * x(j)""",
    """
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) B[i][j] = A[i][j] + u1[i] * v1[j] + u2[i] * v2[j];
    for (int i = 0; i < N; i++) {
        x[i] = z[i];
        for (int j = 0; j < N; j++) x[i] += 1.2 * B[j][i] * y[j];
    }
    for (int i = 0; i < N; i++) {
        w[i] = 0;
        for (int j = 0; j < N; j++) w[i] += 1.5 * B[i][j] * x[j];
    }""",
)  # fmt: skip
kernel(
    "gesummv", "A N N, B N N, x N", "y N", {"N": (30, 250, 1300)},
    """
    s(i) +=! A(i,j) * x(j)
    t(i) +=! B(i,j) * x(j)
    y(i) = 1.5 * s(i) + 1.2 * t(i)""",
    """
    for (int i = 0; i < N; i++) {
        double s = 0, t = 0;
        for (int j = 0; j < N; j++) {
            s += A[i][j] * x[j];
            t += B[i][j] * x[j];
        }
        y[i] = 1.5 * s + 1.2 * t;
    }""",
)  # fmt: skip
kernel(
    "syrk", "A N M, C N N", "O N N", SYMMETRIC,
    """
    O(i,j) = (j <= i) ? 1.2 * C(i,j) : C(i,j)
    O(i,j) += (j <= i) ? 1.5 * A(i,k) * A(j,k) : 0.0""",
    """
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) O[i][j] = j <= i ? 1.2 * C[i][j] : C[i][j];
        for (int k = 0; k < M; k++)
            for (int j = 0; j <= i; j++) O[i][j] += 1.5 * A[i][k] * A[j][k];
    }""",
)  # fmt: skip
kernel(
    "syr2k", "A N M, B N M, C N N", "O N N", SYMMETRIC,
    """
    O(i,j) = (j <= i) ? 1.2 * C(i,j) : C(i,j)
    O(i,j) += (j <= i) ? 1.5 * (A(j,k) * B(i,k) + B(j,k) * A(i,k)) : 0.0""",
    """
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) O[i][j] = j <= i ? 1.2 * C[i][j] : C[i][j];
        for (int k = 0; k < M; k++)
            for (int j = 0; j <= i; j++) O[i][j] += 1.5 * (A[j][k] * B[i][k] + B[j][k] * A[i][k]);
    }""",
)  # fmt: skip
kernel(
    "symm", "A M M, B M N, C M N", "O M N", SYMMETRIC,
    """
    O(i,j) = 1.2 * C(i,j)
    O(i,j) += 1.5 * ((k <= i) ? A(i,k) : A(k,i)) * B(k,j)""",
    """
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) O[i][j] = 1.2 * C[i][j];
        for (int k = 0; k <= i; k++)
            for (int j = 0; j < N; j++) O[i][j] += 1.5 * A[i][k] * B[k][j];
        for (int k = i + 1; k < M; k++)
            for (int j = 0; j < N; j++) O[i][j] += 1.5 * A[k][i] * B[k][j];
    }""",
)  # fmt: skip
kernel(
    "trmm", "A M M, B M N", "O M N", SYMMETRIC,
    """
    O(i,j) = 1.5 * B(i,j)
    O(i,j) += (k > i) ? 1.5 * A(k,i) * B(k,j) : 0.0""",
    """
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = B[i][j];
            for (int k = i + 1; k < M; k++) sum += A[k][i] * B[k][j];
            O[i][j] = 1.5 * sum;
        }""",
)  # fmt: skip
kernel(
    "doitgen", "A NR NQ NP, C NP NP", "O NR NQ NP", {"NQ": (8, 40, 140), "NR": (10, 50, 150), "NP": (12, 60, 160)},
    """
    O(r,q,p) +=! A(r,q,s) * C(s,p)""",
    """
    for (int r = 0; r < NR; r++)
        for (int q = 0; q < NQ; q++)
            for (int p = 0; p < NP; p++) {
                O[r][q][p] = 0;
                for (int s = 0; s < NP; s++) O[r][q][p] += A[r][q][s] * C[s][p];
            }""",
)  # fmt: skip
kernel(
    "covariance", "D N M", "O M M", STATISTICS,
    """
    m(j) +=! D(i,j)
    E(i,j) = D(i,j) - m(j) / double(N)
    O(i,j) +=! E(k,i) * E(k,j)
    O(i,j) = O(i,j) / double(N - 1)""",
    """
    static double E[N][M];
    for (int j = 0; j < M; j++) {
        double m = 0;
        for (int i = 0; i < N; i++) m += D[i][j];
        for (int i = 0; i < N; i++) E[i][j] = D[i][j] - m / N;
    }
    for (int i = 0; i < M; i++)
        for (int j = i; j < M; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += E[k][i] * E[k][j];
            O[i][j] = O[j][i] = sum / (N - 1);
        }""",
)  # fmt: skip
kernel(
    "correlation", "D N M", "O M M", STATISTICS,
    """
    m(j) +=! D(i,j)
    v(j) +=! (D(i,j) - m(j) / double(N)) * (D(i,j) - m(j) / double(N))
    E(i,j) = (D(i,j) - m(j) / double(N)) / sqrt(v(j))
    O(i,j) +=! E(k,i) * E(k,j)""",
    """
    static double E[N][M];
    for (int j = 0; j < M; j++) {
        double m = 0, v = 0;
        for (int i = 0; i < N; i++) m += D[i][j];
        for (int i = 0; i < N; i++) v += (D[i][j] - m / N) * (D[i][j] - m / N);
        for (int i = 0; i < N; i++) E[i][j] = (D[i][j] - m / N) / sqrt(v);
    }
    for (int i = 0; i < M; i++)
        for (int j = i; j < M; j++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += E[k][i] * E[k][j];
            O[i][j] = O[j][i] = sum;
        }""",
)  # fmt: skip
kernel(
    "jacobi_1d", "A N", "O N", {"N": (30, 400, 2000)},
    """
    B(i) = (i >= 1 && i + 1 < N) ? 0.33333 * (A(i - 1) + A(i) + A(i + 1)) : A(i) where i in 0:N
    O(i) = (i >= 1 && i + 1 < N) ? 0.33333 * (B(i - 1) + B(i) + B(i + 1)) : B(i) where i in 0:N""",
    """
    static double B[N];
    B[0] = O[0] = A[0];
    B[N - 1] = O[N - 1] = A[N - 1];
    for (int i = 1; i < N - 1; i++) B[i] = 0.33333 * (A[i - 1] + A[i] + A[i + 1]);
    for (int i = 1; i < N - 1; i++) O[i] = 0.33333 * (B[i - 1] + B[i] + B[i + 1]);""",
)  # fmt: skip
kernel(
    "jacobi_2d", "A N N", "O N N", {"N": (30, 250, 1300)},
    """
    B(i,j) = (i >= 1 && i + 1 < N && j >= 1 && j + 1 < N)
        ? 0.2 * (A(i,j) + A(i,j - 1) + A(i,j + 1) + A(i + 1,j) + A(i - 1,j)) : A(i,j) where i in 0:N, j in 0:N
    O(i,j) = (i >= 1 && i + 1 < N && j >= 1 && j + 1 < N)
        ? 0.2 * (B(i,j) + B(i,j - 1) + B(i,j + 1) + B(i + 1,j) + B(i - 1,j)) : B(i,j) where i in 0:N, j in 0:N""",
    """
    static double B[N][N];
    for (int i = 0; i < N; i++) {
        B[i][0] = O[i][0] = A[i][0];
        B[0][i] = O[0][i] = A[0][i];
        B[i][N - 1] = O[i][N - 1] = A[i][N - 1];
        B[N - 1][i] = O[N - 1][i] = A[N - 1][i];
    }
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++) B[i][j] = 0.2 * (A[i][j] + A[i][j - 1] + A[i][j + 1] + A[i + 1][j] + A[i - 1][j]);
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++) O[i][j] = 0.2 * (B[i][j] + B[i][j - 1] + B[i][j + 1] + B[i + 1][j] + B[i - 1][j]);""",
)  # fmt: skip
HEAT = """
    {target}(i,j,k) = (i >= 1 && i + 1 < N && j >= 1 && j + 1 < N && k >= 1 && k + 1 < N)
        ? 0.125 * ({a}(i + 1,j,k) - 2.0 * {a}(i,j,k) + {a}(i - 1,j,k)) + 0.125 * ({a}(i,j + 1,k) - 2.0 * {a}(i,j,k) + {a}(i,j - 1,k))
        + 0.125 * ({a}(i,j,k + 1) - 2.0 * {a}(i,j,k) + {a}(i,j,k - 1)) + {a}(i,j,k) : {a}(i,j,k) where i in 0:N, j in 0:N, k in 0:N"""
HEAT_C = """
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++)
            for (int k = 1; k < N - 1; k++)
                {target}[i][j][k] = 0.125 * ({a}[i + 1][j][k] - 2.0 * {a}[i][j][k] + {a}[i - 1][j][k])
                    + 0.125 * ({a}[i][j + 1][k] - 2.0 * {a}[i][j][k] + {a}[i][j - 1][k])
                    + 0.125 * ({a}[i][j][k + 1] - 2.0 * {a}[i][j][k] + {a}[i][j][k - 1]) + {a}[i][j][k];"""
kernel(
    "heat_3d", "A N N N", "O N N N", {"N": (10, 40, 120)},
    HEAT.format(target="B", a="A") + HEAT.format(target="O", a="B"),
    """
    static double B[N][N][N];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            B[0][i][j] = O[0][i][j] = A[0][i][j];
            B[i][0][j] = O[i][0][j] = A[i][0][j];
            B[i][j][0] = O[i][j][0] = A[i][j][0];
            B[N - 1][i][j] = O[N - 1][i][j] = A[N - 1][i][j];
            B[i][N - 1][j] = O[i][N - 1][j] = A[i][N - 1][j];
            B[i][j][N - 1] = O[i][j][N - 1] = A[i][j][N - 1];
        }"""
    + HEAT_C.format(target="B", a="A") + HEAT_C.format(target="O", a="B"),
)  # fmt: skip
kernel(
    "fdtd_2d", "ex NX NY, ey NX NY, hz NX NY", "EX NX NY, EY NX NY, HZ NX NY", {"NX": (20, 200, 1000), "NY": (30, 240, 1200)},
    """
    EY(i,j) = (i >= 1) ? ey(i,j) - 0.5 * (hz(i,j) - hz(i - 1,j)) : 1.0 where i in 0:NX
    EX(i,j) = (j >= 1) ? ex(i,j) - 0.5 * (hz(i,j) - hz(i,j - 1)) : ex(i,j) where j in 0:NY
    HZ(i,j) = (i + 1 < NX && j + 1 < NY) ? hz(i,j) - 0.7 * (EX(i,j + 1) - EX(i,j) + EY(i + 1,j) - EY(i,j)) : hz(i,j)
        where i in 0:NX, j in 0:NY""",
    """
    for (int j = 0; j < NY; j++) EY[0][j] = 1.0;
    for (int i = 1; i < NX; i++)
        for (int j = 0; j < NY; j++) EY[i][j] = ey[i][j] - 0.5 * (hz[i][j] - hz[i - 1][j]);
    for (int i = 0; i < NX; i++) {
        EX[i][0] = ex[i][0];
        for (int j = 1; j < NY; j++) EX[i][j] = ex[i][j] - 0.5 * (hz[i][j] - hz[i][j - 1]);
    }
    for (int i = 0; i < NX - 1; i++) {
        for (int j = 0; j < NY - 1; j++) HZ[i][j] = hz[i][j] - 0.7 * (EX[i][j + 1] - EX[i][j] + EY[i + 1][j] - EY[i][j]);
        HZ[i][NY - 1] = hz[i][NY - 1];
    }
    for (int j = 0; j < NY; j++) HZ[NX - 1][j] = hz[NX - 1][j];""",
)  # fmt: skip
