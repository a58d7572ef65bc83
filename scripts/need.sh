# For `source`: installs packages on Debian and Ubuntu, as root or by sudo.

install() { # install PACKAGE...
    command -v apt-get >/dev/null || return 1
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get install -y -q "$@" >/dev/null 2>&1 || {
        $as_root apt-get update -q >/dev/null && $as_root apt-get install -y -q "$@" >/dev/null 2>&1
    }
}

need() { # need COMMAND PACKAGE...
    command -v "$1" >/dev/null && return 0
    install "${@:2}" || true
    command -v "$1" >/dev/null || { echo "$0: $1 is needed (package $2)" >&2; exit 2; }
}
