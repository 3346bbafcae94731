"""A process that starts another, says which, and waits for it."""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> None:
    """Start a child that would outlive this process."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(json.dumps({"child": child.pid}), flush=True)
    child.wait()


if __name__ == "__main__":
    main()
