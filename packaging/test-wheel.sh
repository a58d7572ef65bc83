#!/usr/bin/env bash
# Tests the wheel as a user installs it: with pip into a new venv, used, and uninstalled. Builds the wheel if
# dist/ has none (scripts/release.sh --wheel). Runs the tests of the Python package with a real pytest and a
# real Jupyter kernel; prints SKIP for those that cannot be installed.
#
#   packaging/test-wheel.sh
#   packaging/test-wheel.sh --built    # without a wheel: python/vramtrace with target/release, which it builds
#
# PYTHON names the interpreter (default python3). Exit status: 0 all passed, 1 a test failed, 2 wrong usage.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
fail() { echo "test-wheel: $*" >&2; exit 1; }
where=$(mktemp -d "${TMPDIR:-/tmp}/vramtrace-wheel.XXXXXX")
trap 'rm -rf "$where"' EXIT

package_tests() { # package_tests VENV REPOSITORY
    echo "== the package, the pytest plugin, Jupyter"
    if ! "$1/bin/pip" install --quiet --disable-pip-version-check pytest ipykernel nbclient; then
        echo "SKIP package: pip could not install pytest, ipykernel and nbclient"
        return 0
    fi
    "$1/bin/pip" install --quiet --disable-pip-version-check transformers ||
        echo "SKIP the callback for a real Trainer: pip could not install transformers"
    # The venv's bin comes first in PATH, so that Jupyter starts the venv's kernel.
    PATH=$1/bin:$PATH "$1/bin/python" -m pytest -q -rs -p no:cacheprovider "$2/tests/python/package"
}

case ${1-} in
    "") ;;
    --built)
        cargo build --release --quiet --workspace
        "$python" -m venv "$where/venv"
        site=$("$where/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        cp -r python/vramtrace "$site"
        cp target/release/libvramtrace.so target/release/libvramtrace_sim.so "$site/vramtrace"
        cp target/release/vramtrace "$where/venv/bin"
        # The metadata that the wheel would install: pytest finds the plugin by its entry point.
        info=$site/vramtrace-0.dist-info
        mkdir "$info"
        printf 'Metadata-Version: 2.1\nName: vramtrace\nVersion: 0\n' >"$info/METADATA"
        sed -n '/^\[project.entry-points.pytest11\]/,/^$/p' pyproject.toml |
            sed 's/project.entry-points.//; s/"//g' >"$info/entry_points.txt"
        package_tests "$where/venv" "$PWD"
        exit 0
        ;;
    *) echo "test-wheel: unknown argument '$1': the only option is --built" >&2; exit 2 ;;
esac

machine=$(uname -m)
wheel=$(ls dist/vramtrace-*_"$machine".whl 2>/dev/null | head -1)
if [ -z "$wheel" ]; then
    scripts/release.sh --wheel
    wheel=$(ls dist/vramtrace-*_"$machine".whl | head -1)
fi
wheel=$PWD/$wheel
repository=$PWD
cd "$where"

size=$(stat -c %s "$wheel")
[ "$size" -le 10000000 ] || fail "$wheel has $size bytes: must be at most 10,000,000"
"$python" "$repository/packaging/wheel-contents.py" "$wheel"

echo "== pip install"
"$python" -m venv venv
find venv | sort >before.txt
venv/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
venv/bin/vramtrace --version
# The recorded demo needs no GPU, no repository and no compiler.
(mkdir first && cd first && ../venv/bin/vramtrace demo >demo.txt 2>demo.err) || fail "vramtrace demo: $(tail -3 first/demo.err)"
grep -q "holds .*activations.py:66" first/demo.txt || fail "the recorded demo does not name its holders"
venv/bin/python "$repository/packaging/check-frames.py" venv/bin/vramtrace venv/bin/python \
    "$repository/tests/python/frames_situations.py" frames
# The command through a symbolic link, as pipx and uv install it.
mkdir links && ln -s "$where/venv/bin/vramtrace" links/vramtrace
links/vramtrace run --simulate --out linked -- venv/bin/python -c \
    'import ctypes; ctypes.CDLL("libcuda.so.1").cuInit(0); import vramtrace; assert vramtrace.is_active()'

echo "== pip uninstall"
venv/bin/pip uninstall --quiet --disable-pip-version-check --yes vramtrace
find venv -name __pycache__ -prune -o -print | sort >after.txt
grep -v __pycache__ before.txt | diff - after.txt || fail "pip uninstall left files behind"

echo "== pip install --target"
venv/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps --target target "$wheel"
target/bin/vramtrace run --simulate --out targeted -- "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")'

echo "== conda's layout"
(mkdir conda && cd conda && "$repository/packaging/try-conda.sh" "$where/venv/bin/pip" "$wheel" "$where/conda/prefix")

echo "== other systems"
for platform in musllinux_1_2_$machine manylinux_2_27_$machine; do
    if venv/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps --only-binary :all: \
        --platform "$platform" --target "$platform" "$wheel" 2>refused.txt; then
        fail "pip installed the wheel for $platform"
    fi
    grep -q "not a supported wheel on this platform" refused.txt || fail "$platform: $(cat refused.txt)"
done

echo "== uv run"
"$python" -m venv uv
if uv/bin/pip install --quiet --disable-pip-version-check uv; then
    mkdir -p project/src
    "$python" -m venv --without-pip project/.venv
    cp "$repository/docs/programs/gpu.py" "$repository/docs/programs/train.py" project/src
    (
        cd project/src
        env -u VIRTUAL_ENV -u LD_PRELOAD PATH="/usr/bin:/bin" UV_CACHE_DIR="$where/uv-cache" UV_OFFLINE=1 \
            "$where/uv/bin/uv" run --no-project --python ../.venv/bin/python --with "$wheel" \
            vramtrace run --simulate --out b/ python train.py 2>"$where/uv.txt" || fail "uv: $(tail -4 "$where/uv.txt")"
        grep -q "gpu.py:35 < train.py:10 held 384.00 MiB" "$where/uv.txt" || fail "uv: $(tail -4 "$where/uv.txt")"
    )
else
    echo "SKIP uv: pip could not install it"
fi

venv/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps "$wheel"
package_tests "$where/venv" "$repository"
