"""``python -m trimtab``."""

import sys

from trimtab.cli.main import main

sys.exit(main())
