"""The library's former place; rooms in the making import it from here."""

from mssvm.core.library import *  # noqa: F403
