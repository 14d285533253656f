"""Settings objects follow scikit-learn's rules for parameters."""

from dataclasses import dataclass, field
from functools import cached_property

import pytest
from sklearn.base import clone

from mssvm.core.errors import InputError
from mssvm.core.params import Settings


@dataclass(frozen=True)
class Inner(Settings):
    size: float = 1.0
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("size must not be negative.")

    @cached_property
    def double(self) -> float:
        return 2 * self.size


@dataclass(frozen=True)
class Outer(Settings):
    inner: Inner = field(default_factory=Inner)
    on: bool = False


def test_params_reach_into_nested_settings() -> None:
    outer = Outer(Inner(3.0))
    assert outer.get_params(deep=False) == {"inner": outer.inner, "on": False}
    assert outer.get_params()["inner__size"] == 3.0
    assert outer.set_params(inner__size=4.0, on=True) is outer
    assert (outer.inner.size, outer.on) == (4.0, True)


def test_a_new_inner_object_comes_before_its_own_settings() -> None:
    outer = Outer().set_params(inner__size=7.0, inner=Inner(1.0, ("a",)))
    assert outer.inner == Inner(7.0, ("a",))


def test_what_was_computed_is_computed_again() -> None:
    inner = Inner(1.0)
    assert inner.double == 2.0
    assert inner.set_params(size=5.0).double == 10.0


def test_refused_settings_change_nothing() -> None:
    inner = Inner(1.0)
    with pytest.raises(InputError, match="must not be negative"):
        inner.set_params(size=-1.0)
    with pytest.raises(InputError, match="has no parameter 'sise'; it has size, names"):
        inner.set_params(sise=1.0)
    assert inner.size == 1.0


def test_clones_are_equal_and_apart() -> None:
    outer = Outer(Inner(3.0, ("a", "b")), True)
    copy = clone(outer)
    assert copy == outer and copy is not outer and copy.inner is not outer.inner
    assert repr(copy) == repr(outer) == "Outer(inner=Inner(size=3.0, names=('a', 'b')), on=True)"
