"""The experiments are no package that is installed: the root has them."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
