#!/usr/bin/env bash
# Runs tests/gpu and benchmarks.gpu on a GPU host without a network, with the wheels of
# `make wheelhouse` and the host's own torch.
#
#   deploy/gpu_host.sh [tests|benchmark|all] [arguments for the benchmark]
#
# PYTHON      the Python that has torch [python3]
# WHEELHOUSE  the folder of wheels [wheelhouse]
# GPU_VENV    where the environment is created, again for each run [.gpu-venv]
# OUT         a folder for the results: gpu-tests.xml, gpu-tests.log, gpu.md, gpu.log [none]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
wheelhouse=${WHEELHOUSE:-wheelhouse}
venv=${GPU_VENV:-.gpu-venv}
out=${OUT:-$(mktemp -d)}
what=${1:-all}
shift $(($# > 0 ? 1 : 0))

fail() {
    echo "gpu_host.sh: $1" >&2
    exit 2
}

case $what in tests | benchmark | all) ;; *) fail "unknown '$what'; use tests, benchmark or all" ;; esac
[ -f "$wheelhouse/python.txt" ] || fail "$wheelhouse has no wheels; run make wheelhouse"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
wanted=$(cat "$wheelhouse/python.txt")
[ "$version" = "$wanted" ] ||
    fail "the wheels are for Python $wanted, $python is $version; make wheelhouse GPU_PYTHON=$version"
# The folders of the host's torch and torchvision. Its Python may be in a virtual environment, whose
# packages --system-site-packages does not show; a .pth file adds them after our own.
folders=$("$python" - <<'END'
from importlib.util import find_spec
from pathlib import Path

found = [find_spec(name) for name in ("torch", "torchvision")]
print("\n".join(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec)))
END
)
[ -n "$folders" ] || fail "$python has no torch; set PYTHON to a Python that has it: PYTHON=... $0"

"$python" -m venv --clear --without-pip "$venv"
venv=$(cd "$venv" && pwd)
# All wheels without dependency resolution: the host's other versions come after them.
"$venv/bin/python" "$(echo "$wheelhouse"/pip-*.whl)/pip" --isolated install --quiet --no-index \
    --no-deps --no-compile --no-cache-dir --disable-pip-version-check "$wheelhouse"/*.whl
echo "$folders" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/host.pth"
mkdir -p "$out"

export PYTHONPATH=$PWD PYTHONUNBUFFERED=1
# Do not load the host's pytest plugins.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
status=0
if [ "$what" != benchmark ]; then
    "$venv/bin/python" -m pytest -p pytest_timeout -v --junitxml "$out/gpu-tests.xml" tests/gpu \
        2>&1 | tee "$out/gpu-tests.log" || status=$?
fi
if [ "$what" != tests ]; then
    "$venv/bin/python" -m benchmarks.gpu --out "$out/gpu.md" "$@" 2>&1 | tee "$out/gpu.log" ||
        status=$?
fi
exit $status
