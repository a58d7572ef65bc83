"""``python -m vramtrace`` runs the ``vramtrace`` command."""

import os
import sys


def command():
    """The path of the command that was installed with this package; ``None`` if it is not found."""
    import sysconfig

    schemes = [None, "posix_user"]
    for scheme in schemes:
        try:
            scripts = sysconfig.get_path("scripts", *([scheme] if scheme else []))
        except KeyError:
            continue
        path = os.path.join(scripts, "vramtrace")
        if os.access(path, os.X_OK):
            return path
    import shutil

    return shutil.which("vramtrace")


def main():
    path = command()
    if path is None:
        print(
            "vramtrace: the command 'vramtrace' was found neither beside this package nor in PATH; "
            "install the wheel: pip install vramtrace",
            file=sys.stderr,
        )
        return 2
    sys.stdout.flush()
    os.execv(path, [path] + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
