#!/usr/bin/env bash
# scripts/release.sh --check: builds the last commit in two directories of different names, and in each ROOT, and compares
# the wheel, the archive and each file in them. Exit status: 0 the same bytes, 1 not, 2 a build failed.
set -eu
cd "$(dirname "$0")/.."
machine=$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { printf '\n== %s\n' "$*" >&2; }

# copy DIRECTORY: the last commit, with its history for the time of the commit.
copy() {
    mkdir -p "$(dirname "$1")"
    git clone --quiet . "$1"
}

# sums DIRECTORY: the sums of what was built, and of each file in it.
sums() {
    (
        cd "$1/dist"
        mkdir files
        python3 -m zipfile -e ./*.whl files
        tar -C files -xzf ./*.tar.gz
        find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum
    )
}

first=$work/a second=$work/another/directory
for directory in "$first" "$second"; do
    say "$directory"
    copy "$directory"
    (cd "$directory" && scripts/release.sh --no-advisories "$machine") >"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 2; }
    sums "$directory" >"$work/sums.$(basename "$directory")"
done
failed=0
# same SUMS WHERE: says whether these are the bytes of the first build.
same() {
    if diff "$work/sums.a" "$1" >&2; then
        say "the same bytes in $2"
    else
        failed=1
    fi
}
same "$work/sums.directory" "$second"
number=0
for root in "$@"; do
    [ -x "$root/usr/bin/python3" ] || { echo "release: $root has no Python: must be a Debian system" >&2; exit 2; }
    number=$((number + 1))
    inside=/build/vramtrace-$$-$number
    trap 'rm -rf "$work" "${root:?}$inside"' EXIT
    say "$root: $(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release")"
    copy "$root$inside"
    cargo_home=${CARGO_HOME:-$HOME/.cargo} rustup_home=${RUSTUP_HOME:-$HOME/.rustup}
    mkdir -p "$root/cargo" "$root/rustup" "$root/dev"
    ok=
    # In a mount namespace of its own: nothing stays mounted.
    unshare --mount bash -eu -c '
        root=$1 inside=$2
        mount --bind "$3" "$root/cargo"
        mount --bind "$4" "$root/rustup"
        mount --rbind /dev "$root/dev"
        mount -t proc proc "$root/proc"
        cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
        exec chroot "$root" env HOME=/root CARGO_HOME=/cargo RUSTUP_HOME=/rustup PATH=/cargo/bin:/usr/bin:/bin \
            sh -c "cd $inside && scripts/release.sh --no-advisories $5"
    ' - "$root" "$inside" "$cargo_home" "$rustup_home" "$machine" >"$work/log" 2>&1 && ok=1
    [ -n "$ok" ] || { tail -30 "$work/log" >&2; exit 2; }
    sums "$root$inside" >"$work/sums.root$number"
    same "$work/sums.root$number" "$root"
    rm -rf "${root:?}$inside"
done
grep -v ' ./files/' "$work/sums.a"
[ $failed = 0 ] && echo "release: the same bytes in $((2 + number)) builds"
exit $failed
