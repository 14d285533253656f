"""The engine for CPUs: kernels in C++20, compiled ahead of time (``cpp/``), called through ctypes (``library``)."""
