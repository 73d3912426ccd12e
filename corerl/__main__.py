"""``python -m corerl``."""

from corerl.cli.main import main

main()
