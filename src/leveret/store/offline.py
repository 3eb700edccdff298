"""What commands do to a state directory without its daemon, in a process of its own (cli/upkeep.py).

    python -m leveret.store.offline fsck --statedir DIR [--repair]
    python -m leveret.store.offline restore SOURCE --statedir DIR

Prints one JSON object: the answer, or `{"error": {code, message, hint, path}}` with exit code 1.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from leveret.errors import ConfigError, ConflictError, LeveretError
from leveret.store import backup, fsck


def lock(state_dir: Path) -> int | None:
    """Hold a state directory as a daemon would; None when one does."""
    fd = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def run_fsck(state_dir: Path, repair: bool) -> dict[str, Any]:
    if not repair:
        return fsck.check(state_dir).to_dict()
    fsck.check(state_dir)  # nothing is made where there is no instance
    held = lock(state_dir)
    if held is None:
        raise ConflictError(f"a daemon runs on `{state_dir}`", "end it first: leveret shutdown --keep")
    try:
        return fsck.repair(state_dir).to_dict()
    finally:
        os.close(held)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="leveret-offline", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    checks = verbs.add_parser("fsck")
    checks.add_argument("--statedir", type=Path, required=True)
    checks.add_argument("--repair", action="store_true")
    restores = verbs.add_parser("restore")
    restores.add_argument("source", type=Path)
    restores.add_argument("--statedir", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        try:
            if args.verb == "fsck":
                answer = run_fsck(args.statedir, args.repair)
            else:
                answer = backup.restore(args.source, args.statedir)
        except sqlite3.Error as error:
            raise ConfigError(f"the database cannot be read: {error}", "restore a dump, if there is one") from error
        except OSError as error:
            raise ConfigError(f"{error.filename or args.statedir}: {error.strerror or error}") from error
    except LeveretError as error:
        print(json.dumps({"error": error.to_dict()}))
        return 1
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
