"""A fetch in a process of its own, for killing: `fetch_kit.py FOLDER JSON`."""

import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def start(folder, **data):
    """Begin a fetch; returns the process."""
    command = [sys.executable, __file__, str(folder), json.dumps(data)]
    return subprocess.Popen(command, cwd=HERE.parents[1], stdout=subprocess.PIPE, text=True)


def kill_when(process, ready, seconds=60):
    """SIGKILL once `ready()` holds; fails when it never does."""
    stop = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < stop
        time.sleep(0.02)
    process.kill()
    process.communicate()


def part_bytes(folder):
    return sum(p.stat().st_size for p in Path(folder).glob("parts/*.part"))


if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parents[1])]
    from hub_kit import params

    from envace.data.fetch import fetch

    fetch(params(**json.loads(sys.argv[2])), Path(sys.argv[1]))
