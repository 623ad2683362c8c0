import os
import sys

from .cli import main

code = main()
if "RANK" in os.environ:
    # A thread of gloo's that asks for the GIL while the interpreter shuts down aborts a run that has already finished.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
sys.exit(code)
