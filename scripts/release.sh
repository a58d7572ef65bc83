#!/usr/bin/env bash
# Builds the release into dist/: for each architecture a wheel and a tar.gz of the command and its libraries,
# their SHA-256 sums, and the licences of all linked crates. Each tar.gz is unpacked and tried.
#
#   scripts/release.sh                    # for x86_64 and aarch64
#   scripts/release.sh aarch64            # for one architecture
#   scripts/release.sh --wheel            # only the wheel for this machine
#   scripts/release.sh --wheel aarch64
#   scripts/release.sh --no-advisories    # does not ask the database of known vulnerabilities
#   scripts/release.sh --check [ROOT...]  # builds the last commit in two directories, and in each ROOT: same bytes?
#
# The same commit, toolchain and versions of maturin and zig give the same bytes: paths are replaced in the binaries, and
# times are those of the commit (SOURCE_DATE_EPOCH). A ROOT is a directory with a Debian system (debootstrap) that has
# gcc, git, python3-venv and ca-certificates; --check enters it with chroot, as root, and takes this machine's Rust.
#
# Needs Rust, Python with venv, and a network. zig links against glibc 2.28; zig and maturin are installed
# from PyPI into a venv under target/. A cross build needs the Rust standard library of the target (rustup
# installs it) and its libgcc_s.so.1 (package gcc-aarch64-linux-gnu). scripts/deny.sh checks licences, sources
# and advisories of the crates. Exit status: 0 built, 1 a check failed, 2 wrong usage or a missing tool.
set -eu
cd "$(dirname "$0")/.."
wheel_only=
advisories=1
machines=
if [ "${1-}" = --check ]; then
    shift
    exec packaging/check-reproducible.sh "$@"
fi
for argument in "$@"; do
    case $argument in
        --wheel) wheel_only=1 ;;
        --no-advisories) advisories= ;;
        x86_64 | aarch64) machines="$machines $argument" ;;
        *) echo "release: unknown argument '$argument': must be --wheel, --no-advisories, --check, x86_64 or aarch64" >&2; exit 2 ;;
    esac
done
say() { printf '\n== %s\n' "$*" >&2; }
fail() { echo "release: $*" >&2; exit 2; }

here=$(uname -m)
case $here in
    x86_64 | aarch64) ;;
    *) fail "this machine is $here: must be x86_64 or aarch64" ;;
esac
[ -n "$machines" ] || machines=$([ -n "$wheel_only" ] && echo "$here" || echo x86_64 aarch64)
command -v cargo >/dev/null || fail "cargo was not found; install Rust 1.88 or later"

tools=target/release-venv
if ! "$tools/bin/python" -c 'import ziglang' 2>/dev/null || [ ! -x "$tools/bin/maturin" ]; then
    say "maturin and zig, into $tools"
    ${PYTHON:-python3} -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin==1.16.*' 'ziglang==0.17.*'
fi
export VRAMTRACE_ZIG="$PWD/$tools/bin/python -m ziglang"
# Not the usual target directory: the other linker would make cargo rebuild everything each time.
target=${CARGO_TARGET_DIR:-target/dist}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)

say "crates, and their licences"
[ -z "$wheel_only" ] || advisories=
scripts/deny.sh ${advisories:+advisories} bans licenses sources
python3 packaging/licenses.py >THIRD-PARTY-LICENSES.txt

rm -rf dist
mkdir dist

# The same bytes from any directory and at any time.
umask 022
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
cargo_home=${CARGO_HOME:-$HOME/.cargo}
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/vramtrace --remap-path-prefix=$cargo_home=/cargo"

release() { # release MACHINE
    machine=$1
    triple=$machine-unknown-linux-gnu
    cross= prefix= runs=
    if [ "$machine" != "$here" ]; then
        cross="--target $triple" prefix=$machine-linux-gnu- runs="qemu-$machine -L /usr/$machine-linux-gnu"
        if command -v rustup >/dev/null; then
            rustup target add "$triple" || fail "rustup could not install the target $triple"
        fi
        command -v "${prefix}gcc" >/dev/null || fail "${prefix}gcc was not found; install gcc-$machine-linux-gnu"
    fi
    export VRAMTRACE_ZIG_TARGET=$machine-linux-gnu.2.28
    # The libgcc_s.so.1 that every program of the target is linked with.
    VRAMTRACE_LIBGCC_S=$("${prefix}gcc" -print-file-name=libgcc_s.so.1)
    export VRAMTRACE_LIBGCC_S
    [ -f "$VRAMTRACE_LIBGCC_S" ] || fail "libgcc_s.so.1 for $machine was not found; install gcc"
    export VRAMTRACE_STRIP=${prefix}strip
    command -v "$VRAMTRACE_STRIP" >/dev/null || fail "$VRAMTRACE_STRIP was not found; install binutils"
    # Build scripts run on this machine: they are linked with its own linker.
    unset CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER
    upper=$(echo "$machine" | tr a-z A-Z)
    export CARGO_TARGET_DIR=$target${cross:+-$machine}
    export "CARGO_TARGET_${upper}_UNKNOWN_LINUX_GNU_LINKER=$PWD/packaging/zig-linker"

    say "$machine: libraries and command, for glibc 2.28"
    # shellcheck disable=SC2086 # words
    cargo build --quiet --release $cross --package vramtrace --package vramtrace-shim --package vramtrace-sim
    built=$CARGO_TARGET_DIR/${cross:+$triple/}release
    cp "$built/libvramtrace.so" "$built/libvramtrace_sim.so" python/vramtrace

    say "$machine: wheel"
    # The same command and profile as above: nothing is compiled again.
    # shellcheck disable=SC2086
    "$tools/bin/maturin" build --quiet --release --skip-auditwheel $cross \
        --compatibility manylinux_2_28 --out dist
    python3 packaging/symbol-versions.py 2.28 "python/vramtrace/libvramtrace.so" \
        "python/vramtrace/libvramtrace_sim.so" "$built/vramtrace"
    wheel=$(ls dist/*_"$machine".whl)
    python3 packaging/wheel-paths.py "$wheel" .
    python3 packaging/wheel-contents.py "$wheel"
    size=$(stat -c %s "$wheel")
    [ "$size" -le 10000000 ] || { echo "release: $wheel has $size bytes: must be at most 10,000,000" >&2; exit 1; }
    [ -z "$wheel_only" ] || return 0

    say "$machine: tar.gz"
    name=vramtrace-$version-linux-$machine
    share=dist/$name/share
    mkdir -p "dist/$name/bin" "dist/$name/lib" "$share/man/man1" "$share/bash-completion/completions" \
        "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
    cp "$built/vramtrace" "dist/$name/bin"
    cp python/vramtrace/libvramtrace.so python/vramtrace/libvramtrace_sim.so "dist/$name/lib"
    cp README.md LICENSE-MIT LICENSE-APACHE THIRD-PARTY-LICENSES.txt "dist/$name"
    command=$PWD/dist/$name/bin/vramtrace
    if [ -n "$cross" ] && ! command -v "qemu-$machine" >/dev/null; then
        command=$(ls "$target/release/vramtrace" 2>/dev/null) ||
            fail "nothing on this machine can write the man pages: install qemu-user, or build $here first"
        runs=
    fi
    # shellcheck disable=SC2086
    {
        $runs "$command" __man "$share/man/man1" >/dev/null
        $runs "$command" completions bash >"$share/bash-completion/completions/vramtrace"
        $runs "$command" completions zsh >"$share/zsh/site-functions/_vramtrace"
        $runs "$command" completions fish >"$share/fish/vendor_completions.d/vramtrace.fish"
    }
    tar -C dist --sort=name --owner=0 --group=0 --numeric-owner --mtime=@"$SOURCE_DATE_EPOCH" \
        -cf - "$name" | gzip -9n >"dist/$name.tar.gz"
    rm -r "dist/${name:?}"
    packaging/try-archive.sh "dist/$name.tar.gz"
}

for machine in $machines; do
    release "$machine"
done
(cd dist && sha256sum -- *.whl $([ -n "$wheel_only" ] || ls -- *.tar.gz) >SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
ls -l dist >&2
