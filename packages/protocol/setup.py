"""Compiles the kernel of the record codec where a compiler is; without one the package is built all the same.

All else about the package is in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

names = ("decode_kernel", "encode_kernel")
kernel = cythonize(
    [Extension(f"raylog.protocol.batches.{name}", [f"src/raylog/protocol/batches/{name}.py"]) for name in names],
    build_dir="build",
)
for extension in kernel:
    extension.optional = True  # cythonize forgets it

setup(ext_modules=kernel)
