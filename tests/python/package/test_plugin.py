"""``pytest --vramtrace``, by a real pytest in a process of its own."""

TESTS = """
    import driver, pytest

    kept = []


    @pytest.fixture(scope="session", autouse=True)
    def gpu():
        driver.init()


    def test_small():
        driver.free(driver.alloc(100))


    @pytest.mark.vram_limit("64MiB")
    def test_too_much():
        driver.free(driver.alloc(128))


    @pytest.mark.vram_limit("256MiB")
    def test_fits():
        driver.free(driver.alloc(128))


    @pytest.mark.vram_no_leaks
    def test_leaks():
        kept.append(driver.alloc(32))  # here


    @pytest.mark.vram_no_leaks(allow="64MiB")
    def test_is_allowed():
        kept.append(driver.alloc(32))


    @pytest.mark.vram_no_leaks
    def test_clean():
        driver.free(driver.alloc(32))


    def test_nothing():
        pass


    @pytest.mark.vram_limit("1MiB")
    def test_fails_by_itself():
        driver.free(driver.alloc(16))
        assert False, "its own failure"
"""


def lines(run, word):
    return [line for line in run.stdout.splitlines() if word in line]


def test_limits_leaks_and_the_summary(recorded):
    recorded.write("test_gpu.py", TESTS)
    run = recorded.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--vramtrace", "test_gpu.py")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "3 failed, 5 passed" in run.stdout, run.stdout
    assert "took 128.00 MiB of GPU memory at once, more than vram_limit (64.00 MiB)" in run.stdout
    assert "left 32.00 MiB of GPU memory behind" in run.stdout
    assert lines(run, " < " + recorded.line("test_gpu.py", "# here")), "the line that holds it"
    assert "its own failure" in run.stdout and "16.00 MiB of GPU memory at once" not in run.stdout
    table = run.stdout.split("GPU memory by test (vramtrace)")[1]
    order = [word for word in table.split() if word.startswith("test_gpu.py::")]
    assert order[:3] == ["test_gpu.py::test_fits", "test_gpu.py::test_too_much", "test_gpu.py::test_small"]
    assert "test_nothing" not in table
    report = recorded.vramtrace("report", "--by", "phase", "out")
    assert "test_gpu.py::test_fits" in report.stdout, "each test is a phase"


def test_off_unless_asked(recorded):
    recorded.write("test_gpu.py", TESTS)
    run = recorded.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_gpu.py")
    assert "1 failed, 7 passed" in run.stdout and "vramtrace" not in run.stdout, run.stdout


def test_without_the_recorder_marked_tests_fail(recorded):
    recorded.write("test_it.py", """
        import pytest

        def test_plain():
            pass

        @pytest.mark.vram_limit("1GiB")
        def test_marked():
            pass
        """)
    run = recorded.bare("-m", "pytest", "-q", "-p", "no:cacheprovider", "--vramtrace", "test_it.py")
    assert "1 failed, 1 passed" in run.stdout and "was not measured" in run.stdout, run.stdout
    assert "vramtrace run" in run.stdout


def test_bad_marks_stop_the_run(recorded):
    for mark, says in (
        ('vram_limit("lots")', "not a size"),
        ("vram_limit", "takes one size"),
        ("vram_no_leaks(5)", "allow="),
    ):
        recorded.write("test_it.py", """
            import pytest

            @pytest.mark.%s
            def test_marked():
                pass
            """ % mark)
        run = recorded.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "--vramtrace", "test_it.py")
        assert run.returncode == 4 and says in run.stdout + run.stderr, (mark, run.stdout, run.stderr)
