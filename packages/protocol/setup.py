"""Compiles the kernel of the record codec where a compiler is; without one the package is built all the same.

All else about the package is in pyproject.toml.
"""

from Cython.Build import cythonize
from setuptools import setup

kernel = cythonize(["src/raylog/protocol/*_kernel.py"], build_dir="build")
for extension in kernel:
    extension.optional = True

setup(ext_modules=kernel)
