"""`python -m embedrock`: the command line, for places where the script is not on the path."""

import sys

from embedrock.cli import main

sys.exit(main())
