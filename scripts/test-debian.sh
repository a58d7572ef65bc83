#!/usr/bin/env bash
# The wheel on other systems: makes a root of each named Debian release with debootstrap (as root; some
# minutes and 500 MB each, kept for the next time), installs the wheel there with pip, and runs the
# recorded demo and a program on the simulated driver whose frames must be those that Python shows.
#
#   scripts/test-debian.sh                    # bullseye: glibc 2.31, Python 3.9
#   scripts/test-debian.sh bullseye bookworm trixie forky
#
# Each Python 3.8 or later in the root is tested, with the wheel in dist/ (scripts/release.sh).
# VRAMTRACE_DEBIAN_ROOTS is where the roots are kept (default: target/debian).
set -eu
cd "$(dirname "$0")/.."
roots=${VRAMTRACE_DEBIAN_ROOTS:-$PWD/target/debian}
[ $# -gt 0 ] || set -- bullseye
wheel=$(ls dist/vramtrace-*.whl 2>/dev/null | head -1)
[ -n "$wheel" ] || { echo "test-debian: there is no wheel in dist/; run scripts/release.sh" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "test-debian: needs root, for debootstrap and chroot" >&2; exit 2; }
if ! command -v debootstrap >/dev/null; then
    apt-get install -y -q debootstrap >/dev/null || {
        echo "test-debian: debootstrap is needed (package debootstrap)" >&2
        exit 2
    }
fi
for release in "$@"; do
    case $release in
        bullseye | bookworm) more= ;;
        trixie) more= ;;
        # Two Pythons; the second where the release has it.
        forky | sid) more=,python3.14 ;;
        *) echo "test-debian: unknown release $release: bullseye, bookworm, trixie, forky or sid" >&2; exit 2 ;;
    esac
    root=$roots/$release
    if [ ! -e "$root/usr/bin/python3" ]; then
        echo "== $release: debootstrap into $root"
        mkdir -p "$roots"
        recipe=/usr/share/debootstrap/scripts/$release
        [ -e "$recipe" ] || recipe=/usr/share/debootstrap/scripts/sid
        debootstrap --variant=minbase --include="python3,python3-venv,python3-pip$more" "$release" \
            "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" "$recipe" >"$roots/$release.log" 2>&1 || {
            tail -5 "$roots/$release.log" >&2
            exit 1
        }
        # Where there is a newer Python beside the release's own, that is tested too.
        chroot "$root" apt-get install -y -q --no-install-recommends python3.15-venv >/dev/null 2>&1 || true
    fi
    rm -rf "$root/vramtrace-test"
    mkdir "$root/vramtrace-test"
    cp "$wheel" tests/python/frames_situations.py scripts/release/check-frames.py "$root/vramtrace-test"
    echo "== $release: $(chroot "$root" ldd --version | head -1)"
    # dlopen's constructors look at /proc.
    unshare --mount --propagation private bash -eu -s "$root" <<'INSIDE'
mount -t proc proc "$1/proc"
exec chroot "$1" bash -eu -c '
    cd /vramtrace-test
    for python in /usr/bin/python3.[0-9] /usr/bin/python3.[0-9][0-9] /opt/python*/bin/python3; do
        [ -x "$python" ] || continue
        name=$(echo "$python" | tr / _)
        "$python" -m venv --without-pip "venv$name" || { echo "SKIP $python: no venv"; continue; }
        # The pip of the release, for its own Python and for others.
        if ! python3 -m pip --python "venv$name/bin/python" install -q --no-index ./*.whl 2>/dev/null; then
            rm -r "venv$name"
            "$python" -m venv "venv$name"
            "venv$name/bin/pip" install -q --no-index ./*.whl
        fi
        bin=venv$name/bin
        "$bin/vramtrace" --version
        "$bin/vramtrace" demo --recorded --out "recorded$name" >demo.txt 2>&1
        grep -q "holds .*activations.py:66" demo.txt
        "$bin/python" check-frames.py "$bin/vramtrace" "$bin/python" frames_situations.py "out$name"
    done'
INSIDE
done
echo "test-debian: all passed"
