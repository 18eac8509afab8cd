#!/bin/sh
# Wheels for a GPU machine that reaches no network and has a Python with torch: benchmarks/gpu/carry.sh FOLDER [PYTHON [ARCH]]
#
# FOLDER receives everything in carried.txt with its dependencies, for Python 3.12 on x86_64 unless said otherwise. NumPy and torch
# stay out: those of the GPU machine fit each other. PIP=... names the pip to use.
set -eu

[ $# -ge 1 ] || { echo "usage: $0 FOLDER [PYTHON [ARCH]], as in: $0 wheels 3.12 x86_64" >&2; exit 2; }
folder=$1 python=${2:-3.12} arch=${3:-x86_64}
here=$(dirname "$0")

# pip takes these names literally: an older one is not implied by a newer one
set --
for platform in manylinux_2_28 manylinux_2_27 manylinux_2_26 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_12 manylinux_2_5 manylinux1; do
    set -- "$@" --platform "${platform}_$arch"
done
${PIP:-python3 -m pip} download --quiet --only-binary=:all: --implementation cp --python-version "$python" "$@" \
    --dest "$folder" --requirement "$here/carried.txt"
rm -f "$folder"/numpy-* "$folder"/torch-*

cat <<END
$(ls "$folder" | wc -l) wheels, $(du -sh "$folder" | cut -f1). On the GPU machine, in the repository:

    python3 -m pip install --no-index --no-deps --target /tmp/tcjit-site $folder/*.whl
    PYTHONPATH=/tmp/tcjit-site make gpu PYTHON=python3 VENV=
END
