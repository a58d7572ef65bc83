#!/usr/bin/env bash
# Builds what is released, into dist/: the wheel, a tar.gz of the command and its libraries, their
# SHA-256 sums, the licences of all crates in them.
#
#   scripts/release.sh             # for x86_64
#   scripts/release.sh --wheel     # the wheel alone
#
# Needs Rust and Python with venv. Linked by zig against glibc 2.28, which comes from PyPI with maturin,
# into a venv under target/. Licences, sources and known advisories of the crates are checked
# by scripts/deny.sh, which needs the network.
set -eu
cd "$(dirname "$0")/.."
wheel_only=
for argument in "$@"; do
    case $argument in
        --wheel) wheel_only=1 ;;
        *) echo "release: unknown argument $argument; the only one is --wheel" >&2; exit 2 ;;
    esac
done
say() { printf '\n== %s\n' "$*" >&2; }

machine=$(uname -m)
case $machine in
    x86_64) ;;
    # docs/PACKAGING.md says what is missing.
    *) echo "release: the recorder is not built for $machine yet; x86_64 alone is supported" >&2; exit 2 ;;
esac
command -v cargo >/dev/null || { echo "release: cargo was not found; install Rust 1.88 or later" >&2; exit 2; }

tools=target/release-venv
if ! "$tools/bin/python" -c 'import ziglang' 2>/dev/null || [ ! -x "$tools/bin/maturin" ]; then
    say "maturin and zig, into $tools"
    ${PYTHON:-python3} -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin==1.16.*' 'ziglang==0.17.*'
fi

export VRAMTRACE_ZIG="$PWD/$tools/bin/python -m ziglang"
export VRAMTRACE_ZIG_TARGET=$machine-linux-gnu.2.28
# The one that every program of this machine is linked to.
VRAMTRACE_LIBGCC_S=$(gcc -print-file-name=libgcc_s.so.1)
export VRAMTRACE_LIBGCC_S
[ -f "$VRAMTRACE_LIBGCC_S" ] || { echo "release: libgcc_s.so.1 was not found; install gcc" >&2; exit 2; }
upper=$(echo "$machine" | tr a-z A-Z)
export "CARGO_TARGET_${upper}_UNKNOWN_LINUX_GNU_LINKER=$PWD/scripts/release/zig-linker"

say "libraries and command, for glibc 2.28"
# A directory beside the ordinary one: another linker would make each build do the other's work anew.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target/dist}
cargo build --quiet --release --package vramtrace --package vramtrace-shim --package vramtrace-sim
built=$CARGO_TARGET_DIR/release
strip=strip
command -v strip >/dev/null || strip=true
for library in libvramtrace.so libvramtrace_sim.so; do
    # Names stay for RUST_BACKTRACE; lines would be three quarters of the size.
    $strip --strip-debug -o "python/vramtrace/$library" "$built/$library"
done

say "licences"
python3 scripts/release/licenses.py --check
python3 scripts/release/licenses.py >THIRD-PARTY-LICENSES.txt
if [ -z "$wheel_only" ]; then
    say "advisories"
    scripts/deny.sh advisories bans licenses sources
fi

say "wheel"
rm -rf dist
mkdir dist
# The same command and profile as above: nothing is compiled again.
"$tools/bin/maturin" build --quiet --release --strip --skip-auditwheel \
    --compatibility manylinux_2_28 --out dist
python3 scripts/release/symbol-versions.py 2.28 "python/vramtrace/libvramtrace.so" \
    "python/vramtrace/libvramtrace_sim.so" "$built/vramtrace"

if [ -z "$wheel_only" ]; then
    say "tar.gz"
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    name=vramtrace-$version-linux-$machine
    mkdir -p "dist/$name/bin" "dist/$name/lib"
    $strip --strip-debug -o "dist/$name/bin/vramtrace" "$built/vramtrace"
    cp python/vramtrace/libvramtrace.so python/vramtrace/libvramtrace_sim.so "dist/$name/lib"
    cp README.md LICENSE-MIT LICENSE-APACHE THIRD-PARTY-LICENSES.txt "dist/$name"
    tar -C dist --sort=name --owner=0 --group=0 --numeric-owner -czf "dist/$name.tar.gz" "$name"
    rm -r "dist/${name:?}"
    (cd dist && sha256sum -- *.whl *.tar.gz >SHA256SUMS)
fi
size=$(stat -c %s dist/*.whl)
[ "$size" -le 10000000 ] || { echo "release: the wheel has $size bytes; at most 10 MB" >&2; exit 1; }
ls -l dist >&2
