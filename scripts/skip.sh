# For `source`: what a script does where something that a check needs is missing. The tests do the same
# (tests/testkit/src/skip.rs).

# skip WHY: says it, and notes it for the summary of scripts/test.sh. With VRAMTRACE_TEST_NO_SKIP, as in
# CI, an error: the script ends here.
skip() {
    echo "SKIP $*" >&2
    mkdir -p target/tmp
    echo "$*" >>target/tmp/skipped
    if [ -n "${VRAMTRACE_TEST_NO_SKIP:-}" ]; then
        echo "VRAMTRACE_TEST_NO_SKIP is set, and a check would be skipped: $*" >&2
        exit 1
    fi
}
