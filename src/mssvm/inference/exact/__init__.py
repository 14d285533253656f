"""Exact inference."""

from mssvm.inference.exact.exact import Exact

__all__ = ["Exact"]
