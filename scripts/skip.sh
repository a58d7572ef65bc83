# For `source`: skips a check whose tool is missing. tests/testkit/src/skip.rs does the same for tests.

# skip WHY: prints "SKIP WHY", and adds it to the summary of the running script. If VRAMTRACE_TEST_NO_SKIP is
# set, as in CI, a skipped check is an error: the script ends with status 1.
skip() {
    echo "SKIP $*" >&2
    mkdir -p target/tmp
    echo "$*" >>target/tmp/skipped
    if [ -n "${VRAMTRACE_TEST_NO_SKIP:-}" ]; then
        echo "VRAMTRACE_TEST_NO_SKIP is set, and a check would be skipped: $*" >&2
        exit 1
    fi
}

# all_passed: the last line of a script whose checks passed, with what was skipped.
all_passed() {
    if [ -s target/tmp/skipped ]; then
        printf '\n== all tests passed; skipped, because something is missing here:\n'
        sort target/tmp/skipped | uniq -c
    else
        printf '\n== all tests passed, none was skipped\n'
    fi
}
