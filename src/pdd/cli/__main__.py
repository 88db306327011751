"""``python -m pdd.cli``: how the supervisor starts roles, whatever ``PATH`` holds."""

import sys

from pdd.cli import main

sys.exit(main())
