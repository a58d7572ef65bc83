#!/usr/bin/env bash
# Tests the wheel on other Debian releases: makes a root directory of each release with debootstrap (some
# minutes and 500 MB each; it is kept), installs the wheel in it with pip, runs the recorded demo, and compares
# the frames of a program on the simulated driver with those of Python's `traceback`.
#
#   packaging/test-debian.sh                    # bullseye: glibc 2.31, Python 3.9
#   packaging/test-debian.sh bullseye bookworm trixie forky
#   packaging/test-debian.sh --suite bullseye   # runs `cargo test --workspace` there, with this machine's Rust
#   packaging/test-debian.sh --suite bullseye -- --test frames native_frames    # a part of the tests
#
# Needs root, and the wheel in dist/ (scripts/release.sh); --suite needs no wheel. Tests each Python 3.8 or
# later in the root. --suite uses a separate root, in which it installs gcc.
# VRAMTRACE_DEBIAN_ROOTS is the directory of the roots (default: target/debian).
# Exit status: 0 all passed, 1 a test failed, 2 wrong usage or something is missing.
set -eu
cd "$(dirname "$0")/.."
roots=${VRAMTRACE_DEBIAN_ROOTS:-$PWD/target/debian}
suite=
[ "${1-}" != --suite ] || { suite=-suite; shift; }
releases=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    releases="$releases $1"
    shift
done
releases=${releases:-bullseye}
[ $# = 0 ] || shift
[ -n "$suite" ] || [ $# = 0 ] || { echo "test-debian: '$1': arguments of cargo test need --suite" >&2; exit 2; }
[ $# -gt 0 ] || [ -z "$suite" ] || set -- --workspace
wheel=$(ls dist/vramtrace-*_"$(uname -m)".whl 2>/dev/null | head -1)
[ -n "$wheel$suite" ] || {
    echo "test-debian: no dist/vramtrace-*_$(uname -m).whl; build it: scripts/release.sh" >&2
    exit 2
}
[ "$(id -u)" = 0 ] || { echo "test-debian: needs root, for debootstrap and chroot" >&2; exit 2; }
if ! command -v debootstrap >/dev/null; then
    apt-get install -y -q debootstrap >/dev/null || {
        echo "test-debian: debootstrap was not found (package debootstrap)" >&2
        exit 2
    }
fi
run_suite() { # run_suite ROOT ARGUMENT...: runs `cargo test ARGUMENT...` in the root
    echo "== $release, the suite: $(chroot "$1" ldd --version | head -1)"
    # The tests look for interpreters in pyenv's directories.
    for python in "$1"/usr/bin/python3.[0-9] "$1"/usr/bin/python3.[0-9][0-9]; do
        [ -x "$python" ] || continue
        version=$(chroot "$1" "${python#"$1"}" -c 'import platform; print(platform.python_version())')
        home=$1/root/.pyenv/versions/$version
        rm -rf "$home"
        mkdir -p "$home/lib"
        ln -s /usr/bin "$home/bin"
        for library in "/usr/lib/python${version%.*}" "/usr/lib/$(uname -m)-linux-gnu/libpython${version%.*}.so.1.0"; do
            ln -s "$library" "$home/lib"
        done
    done
    mkdir -p "$1/repository" "$1/rust/rustup" "$1/rust/cargo" "$1/target"
    root=$1
    shift
    unshare --mount --propagation private bash -eu -s "$root" "$PWD" "${RUSTUP_HOME:-$HOME/.rustup}" \
        "${CARGO_HOME:-$HOME/.cargo}" "$@" <<'INSIDE'
mount -t proc proc "$1/proc"
mount -t sysfs sysfs "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/tmp"
mount --bind "$2" "$1/repository"
mount --bind "$3" "$1/rust/rustup"
mount --bind "$4" "$1/rust/cargo"
root=$1
shift 4
exec chroot "$root" env -i HOME=/root LANG=C.UTF-8 RUSTUP_HOME=/rust/rustup CARGO_HOME=/rust/cargo CARGO_NET_OFFLINE=true \
    CARGO_TARGET_DIR=/target PATH=/rust/cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -eu -c '
    cd /repository
    mkdir -p /target/tmp
    rm -f /target/tmp/skipped
    cargo build --quiet --workspace --lib --bins --examples
    status=0
    cargo test --quiet --no-fail-fast "$@" || status=1
    echo "skipped:"
    sort /target/tmp/skipped 2>/dev/null | uniq -c
    exit $status' suite "$@"
INSIDE
}

for release in $releases; do
    case $release in
        bullseye | bookworm) more= ;;
        trixie) more= ;;
        # Two Pythons, if the release has the second one.
        forky | sid) more=,python3.14 ;;
        *)
            echo "test-debian: unknown release '$release': must be bullseye, bookworm, trixie, forky or sid" >&2
            exit 2
            ;;
    esac
    # The root for the wheel has no compiler: the wheel needs none.
    [ -z "$suite" ] || more=$more,gcc,g++,libc6-dev,procps,python3-dev,libpython3-dev,xz-utils
    root=$roots/$release$suite
    if [ ! -e "$root/usr/bin/python3" ]; then
        echo "== $release: debootstrap into $root"
        mkdir -p "$roots"
        recipe=/usr/share/debootstrap/scripts/$release
        [ -e "$recipe" ] || recipe=/usr/share/debootstrap/scripts/sid
        debootstrap --variant=minbase --include="python3,python3-venv,python3-pip$more" "$release" \
            "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" "$recipe" >"$root.log" 2>&1 || {
            tail -5 "$root.log" >&2
            exit 1
        }
        # A newer Python than the release's default is tested too, if there is one.
        chroot "$root" apt-get install -y -q --no-install-recommends python3.15-venv >/dev/null 2>&1 || true
    fi
    if [ -n "$suite" ]; then
        run_suite "$root" "$@"
        continue
    fi
    rm -rf "$root/vramtrace-test"
    mkdir "$root/vramtrace-test"
    cp "$wheel" tests/python/frames_situations.py packaging/check-frames.py "$root/vramtrace-test"
    echo "== $release: $(chroot "$root" ldd --version | head -1)"
    # The library's constructors read /proc.
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
        "$bin/vramtrace" demo --out "recorded$name" >demo.txt 2>&1
        grep -q "holds .*activations.py:66" demo.txt
        "$bin/python" check-frames.py "$bin/vramtrace" "$bin/python" frames_situations.py "out$name"
    done
    # A Python that the system manages refuses pip (PEP 668) without --break-system-packages.
    if ls /usr/lib/python3*/EXTERNALLY-MANAGED >/dev/null 2>&1; then
        if python3 -m pip install -q --no-index ./*.whl 2>refused.txt; then exit 1; fi
        grep -q externally-managed refused.txt
        python3 -m pip install -q --no-index --break-system-packages --root-user-action ignore ./*.whl
        python3 check-frames.py "$(command -v vramtrace)" /usr/bin/python3 frames_situations.py system
        python3 -m pip uninstall -q -y --break-system-packages --root-user-action ignore vramtrace
        if command -v vramtrace; then exit 1; fi
    fi'
INSIDE
done
echo "test-debian: all passed"
