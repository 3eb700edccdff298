"""`python -m leveret` is `leveret`."""

from leveret.cli.main import main

main()
