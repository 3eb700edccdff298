"""Fixtures: a scripted daemon, and the command line run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakedaemon import FakeDaemon, Outcome

from leveret.cli import main as cli_main


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    """A scripted daemon that LEVERET_URI addresses."""
    fake = FakeDaemon(str(tmp_path / "d.sock"))
    monkeypatch.setenv("LEVERET_URI", fake.uri)
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    monkeypatch.delenv("LC_CTYPE", raising=False)
    yield fake
    fake.close()


@pytest.fixture
def leveret(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Outcome]]:
    """Run a command line in this process, with /dev/null as stdin."""
    monkeypatch.setenv("LANG", "C.UTF-8")
    monkeypatch.delenv("LC_ALL", raising=False)
    saved = os.dup(0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)

    def run(*args: str) -> Outcome:
        capfd.readouterr()
        code = cli_main.run_cli(args)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    yield run
    os.dup2(saved, 0)
    os.close(saved)
