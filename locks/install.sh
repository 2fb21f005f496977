#!/usr/bin/env bash
# Makes .venv from locks/control.lock. Needs a Python 3.11 or 3.12 with venv; downloads about 0.7 GB once.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "install: $*" >&2; exit 1; }

find_python() {
  for candidate in ${PYTHON:-} python3.11 python3.12 python3; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; then
      echo "$candidate"; return
    fi
  done
  fail "no Python 3.11 or 3.12 found; install one, or name it: make repro PYTHON=/path/to/python3.11"
}

[ ! -L .venv ] || fail ".venv is a symbolic link; making it anew would empty the folder it leads to: remove the link first"
python=$(find_python)
echo "install: making .venv with $("$python" --version 2>&1) from locks/control.lock"
"$python" -m venv --clear .venv || fail "cannot make a virtual environment; on Debian: apt-get install python3-venv"
.venv/bin/python -m pip install --quiet uv || fail "cannot install uv from the package index"

# The control environment wants torch's CPU build. macOS has no other; on Linux it comes from a directory of wheels
# where pip knows one, else from PyTorch's own index.
export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}"
backend=()
if [ "$(uname -s)" = Linux ] && [ -z "$UV_FIND_LINKS" ]; then backend=(--torch-backend=cpu); fi
VIRTUAL_ENV="$PWD/.venv" .venv/bin/uv pip install --quiet --no-deps --compile-bytecode "${backend[@]+"${backend[@]}"}" -r locks/control.lock \
  || fail "the packages of locks/control.lock could not be installed (see above)"

.venv/bin/python -c 'import torch' 2>/dev/null || fail "torch does not import: a CUDA build was taken instead of the CPU build; \
set PIP_FIND_LINKS to a directory with torch's CPU wheel, or allow access to PyTorch's package index"
touch .venv/.ready
echo "install: ready"
