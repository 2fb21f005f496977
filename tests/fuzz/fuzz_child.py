"""One target under atheris: `fuzz_child.py TARGET LIBFUZZER-OPTIONS...`. Started by fuzz_run.py, ends with
the fuzzer.

Invariant: the modules under test are imported here and nowhere before, or their branches are not seen.
"""

import sys
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

with atheris.instrument_imports(include=["envace.chat", "json.decoder"]):
    from fuzz_targets import TARGETS

name = sys.argv.pop(1)
atheris.Setup(sys.argv, TARGETS[name])
atheris.Fuzz()
