"""The build backend of ``pip install .``: builds the preload library and the simulated driver, puts them into the
package, and leaves the wheel with the command to maturin. scripts/release.sh, which builds the published wheels, does
not use it."""

import os
import shutil
import subprocess
import sys

import maturin

RUST = "1.88"
LIBRARIES = ("libvramtrace.so", "libvramtrace_sim.so")


def _fail(why):
    sys.exit("vramtrace: %s" % why)


def _check():
    if not sys.platform.startswith("linux"):
        _fail("the recorder is for Linux, this is %s" % sys.platform)
    if shutil.which("cargo") is None:
        _fail(
            "building from source needs Rust %s or later, and cargo was not found. Install it "
            "(https://rustup.rs) and run `pip install .` again" % RUST
        )


def _libraries():
    os.environ.setdefault("CARGO_PROFILE_RELEASE_STRIP", "symbols")
    # Nothing is compiled that would be stripped.
    os.environ.setdefault("CARGO_PROFILE_RELEASE_DEBUG", "false")
    command = ["cargo", "build", "--release", "--package", "vramtrace-shim", "--package", "vramtrace-sim"]
    if subprocess.call(command):
        _fail("`%s` failed; its message is above. It needs Rust %s or later" % (" ".join(command), RUST))
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    for library in LIBRARIES:
        shutil.copy(os.path.join(target, "release", library), "python/vramtrace")
    # The published wheels list the licences of all crates; release.sh writes this file.
    if not os.path.exists("THIRD-PARTY-LICENSES.txt"):
        with open("THIRD-PARTY-LICENSES.txt", "w") as file:
            file.write("Built from source: `cargo metadata` lists the crates and their licences.\n")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _libraries()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def get_requires_for_build_wheel(config_settings=None):
    # maturin's own would download a compiler where there is none.
    _check()
    return []


def get_requires_for_build_sdist(config_settings=None):
    return []


def build_sdist(sdist_directory, config_settings=None):
    return maturin.build_sdist(sdist_directory, config_settings)
