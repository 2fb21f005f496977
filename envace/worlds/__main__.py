"""`python -m envace.worlds NAME` writes `my_NAME.py`, a world to start from: the one of
docs/your-world.md, which a test runs, under the name given."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from envace.errors import ParamsError, boundary
from envace.worlds.registry import OWN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "your-world.md"


def main(argv: list[str] | None = None) -> None:
    """Write the file and say what comes next."""
    cli = argparse.ArgumentParser(prog="python -m envace.worlds", description=__doc__)
    cli.add_argument("name", help="of the world: small letters, digits and _")
    name = cli.parse_args(argv).name
    with boundary("world"):
        path = Path(f"my_{name}.py")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in OWN:
            taken = f", and {' and '.join(OWN)} come with the project"
            raise ParamsError(f"{name!r} cannot name a world: use small letters, digits and _{taken}")
        if path.exists():
            raise ParamsError(f"{path} is there already; choose another NAME or move it away")
        page = PAGE.read_text(encoding="utf-8")
        page = page.replace("Shop", name.title().replace("_", "")).replace("shop", name)
        python, keys, commands = (
            "\n".join(re.findall(rf"^```{kind}\n(.*?)^```", page, re.M | re.S))
            for kind in ("python", "yaml", "bash")
        )
        path.write_text(python, encoding="utf-8")
        print(f"{path} is a world that runs as it stands: change it. Then set in params.yaml\n\n{keys}")
        print(f"and run\n\n{commands}", end="")


if __name__ == "__main__":
    main()
