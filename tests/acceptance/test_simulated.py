"""The simulated engine: jobs that only take time."""

from __future__ import annotations

from collections.abc import Callable

from harness import NORMAL, Instance

CONFIG = '[exec]\nengine = "simulated"\nsimulated-cores = 4\n'


def test_simulated_jobs(launch: Callable[..., Instance]) -> None:
    instance = launch(size=2, config=CONFIG)
    jobid = instance.submit("-S", "exec.test.run_duration=0.1s", "--wait", "no-such-program")
    assert instance.names(jobid) == NORMAL
    # a wait status of its own, a time limit, a cancel
    assert instance.run("-S", "exec.test.status=768", "x").code == 3
    late = instance.run("-t", "0.1s", "-S", "exec.test.run_duration=1h", "x")
    assert late.code == 142
    assert "resource allocation expired" in late.err
    long = instance.submit("--wait-event=start", "-S", "exec.test.run_duration=1h", "x")
    instance.leveret("cancel", long, check=0)
    assert instance.attach(long).code == 143
    # the whole pool is used, and more than it has is refused
    assert instance.run("-N2", "x").code == 0
    assert "unsatisfiable" in instance.run("-n9", "x").err


def test_simulated_jobs_after_a_crash(launch: Callable[..., Instance]) -> None:
    """Time went on while no daemon was there: what ran then is over."""
    instance = launch(config=CONFIG)
    running = instance.submit("--wait-event=start", "-S", "exec.test.run_duration=1h", "x")
    held = instance.submit("--urgency=hold", "x")
    instance.kill_daemon()
    instance.restart()
    assert instance.attach(running).code == 0
    instance.leveret("job", "urgency", held, "16", check=0)
    assert instance.attach(held).code == 0
