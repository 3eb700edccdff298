"""Fixtures of the acceptance tests; `harness.py` beside this file has what they give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Instance, Ledger


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Instance]]:
    """`launch(size=1, config="")`: an instance of this test's own; several have state of their own each."""
    made: list[Instance] = []

    def start(size: int = 1, config: str = "") -> Instance:
        instance = Instance(tmp_path / f"i{len(made)}", size, config)
        made.append(instance)
        return instance.start()

    yield start
    for instance in made:
        instance.stop()


@pytest.fixture
def instance(launch: Callable[..., Instance]) -> Instance:
    """One node, no configuration."""
    return launch()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Where PRO, EPI and MOVER write, and what makes and steers them."""
    base = tmp_path / "ledger"
    base.mkdir()
    return Ledger(base)


def _shared(factory: pytest.TempPathFactory, size: int) -> Iterator[Instance]:
    instance = Instance(factory.mktemp(f"shared{size}"), size, '[exec]\nkill-timeout = "2s"\n').start()
    yield instance
    instance.stop()


@pytest.fixture(scope="module")
def shared1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    yield from _shared(tmp_path_factory, 1)


@pytest.fixture(scope="module")
def shared4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    yield from _shared(tmp_path_factory, 4)


@pytest.fixture
def shared(shared1: Instance) -> Iterator[Instance]:
    """One node, for tests that need no configuration and leave nothing: one for a whole file."""
    yield shared1
    shared1.idle()


@pytest.fixture
def four(shared4: Instance) -> Iterator[Instance]:
    """Four nodes, one instance for a whole file."""
    yield shared4
    shared4.idle()
