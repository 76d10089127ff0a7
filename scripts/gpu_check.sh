#!/usr/bin/env bash
# Checks and times pibroch on this machine's GPUs in under five minutes, without Ray.
#
#     bash scripts/gpu_check.sh [OUT_DIR] [--dry] [--budget SECONDS]
#
# Prints a table, then one JSON line, which OUT_DIR/gpu_check.json holds too. Status 0: all that ran is right; 1: something
# is not; 3: something is missing. --dry does the same on CPUs with less work.
#
# Needs python3 (or $PYTHON) with torch >= 2.11, numpy, pydantic >= 2.9, and their dependencies; with typer and rich it also
# runs a short `pibroch evolve` (no key). On a machine without a
# network, bring what is missing as wheels. Where there is a network:
#
#     python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 \
#         -d wheels pydantic==VERSION pydantic-core==THE_ONE_IT_PINS annotated-types typing-inspection typing-extensions
#
# (the GPU machine's Python and platform), and there: WHEELS=wheels bash scripts/gpu_check.sh
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUNBUFFERED=1

if [ -n "${WHEELS:-}" ]; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
    export PYTHONPATH="$site:$PYTHONPATH"
fi
for module in torch numpy pydantic; do
    if ! "$python" -c "import $module" 2>/dev/null; then
        echo "gpu_check: $python has no working $module: see the top of scripts/gpu_check.sh for what to bring" >&2
        exit 3
    fi
done
"$python" "$root/scripts/gpu_check.py" "$@"
