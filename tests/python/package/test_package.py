"""``import vramtrace`` with and without the recorder."""

import json

import pytest


def test_without_the_recorder_everything_works(recorded):
    recorded.write("program.py", """
        import warnings
        import vramtrace

        assert not vramtrace.is_active()
        assert vramtrace.usage() is None and vramtrace.trace() is None
        with vramtrace.phase("a"):
            vramtrace.mark("b")

        @vramtrace.phase("c")
        def plain(value):
            "Text."
            return value

        assert plain(3) == 3 and plain.__doc__ == "Text."
        with vramtrace.Peak() as peak:
            pass
        assert (peak.bytes, peak.grown, peak.by_device) == (0, 0, {})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with vramtrace.limit("1GiB"):
                pass
        assert caught[0].category is vramtrace.VramtraceWarning, caught
        assert "vramtrace run" in str(caught[0].message)
        try:
            vramtrace.snapshot("x.vtrace")
        except vramtrace.VramtraceError as error:
            assert "no trace" in str(error)
        else:
            raise AssertionError
        from vramtrace import callbacks
        assert callbacks.metrics() == {}
        """)
    run = recorded.bare("program.py")
    assert run.returncode == 0, run.stderr
    assert not (recorded.directory / "x.vtrace").exists()


def test_usage_names_libraries_and_lines(recorded):
    out = recorded.python("""
        import driver, vramtrace

        assert vramtrace.is_active() and vramtrace.trace() is None
        assert str(vramtrace.usage()) == "this process has not used a GPU"
        driver.init()
        kept = driver.alloc(64)
        other = driver.alloc(32)
        usage = vramtrace.usage()
        [device] = usage.devices
        assert device.ordinal == 0 and device.uuid.startswith("GPU-") and device.total == 24 << 30
        assert device.live == usage.live == 96 << 20 and device.peak == 96 << 20
        assert device.used > device.live and device.cap is None and device.refused == 0
        assert (device.allocations, device.frees) == (2, 0)
        for site in usage.devices[0].sites:
            print(site.bytes >> 20, site.allocations, site.place)
        assert [(library.bytes >> 20, library.allocations) for library in device.libraries] == [(96, 2)]
        assert len(vramtrace.usage(sites=1).devices[0].sites) == 1
        metrics = usage.metrics()
        assert metrics["vram/cuda0/live_gib"] == 96 / 1024, metrics
        for bad in (-1, True, "5"):
            driver.fails(ValueError, "call sites", vramtrace.usage, bad)
        print(usage)
        """)
    place = recorded.line("driver.py", "must(lib.cuMemAlloc_v2")
    kept, other = recorded.line("program.py", "kept ="), recorded.line("program.py", "other =")
    lines = out.splitlines()
    assert lines[:2] == ["64 1 %s < %s" % (place, kept), "32 1 %s < %s" % (place, other)], out
    assert lines[2].startswith("cuda:0  used"), out


def test_limits_lower_and_come_back(recorded):
    recorded.python("""
        import driver, vramtrace

        def cap():
            return vramtrace.usage(0).devices[0].cap

        def is_refused(mib):
            try:
                driver.free(driver.alloc(mib))
            except MemoryError:
                return True

        # Before the GPU is used, too.
        with vramtrace.limit("1GiB"):
            driver.init()
            assert cap() == 1 << 30 and is_refused(1024)
            with vramtrace.limit("2GiB"):
                assert cap() == 1 << 30, "it never raises"
            with vramtrace.limit(600 << 20, device=0):
                assert cap() == 600 << 20 and is_refused(200)
            assert cap() == 1 << 30 and not is_refused(200)
        assert cap() is None and not is_refused(2048)

        with vramtrace.phase("phase"):
            pass

        @vramtrace.limit("1GiB")
        def work():
            return is_refused(2048)

        assert work() and work() and cap() is None
        for bad, kind in (
            ("8", ValueError), (-1, ValueError), (1.5, TypeError), ("8XB", ValueError),
            # More than 64 bits.
            (1 << 64, ValueError), ("16777216TiB", ValueError), ("1.5e308TiB", ValueError),
        ):
            driver.fails(kind, "size", vramtrace.limit, bad)
        """)
    run = recorded.vramtrace("report", "--by", "phase", "out")
    assert "GPU 0" in run.stdout and "GPU 1" not in run.stdout, "devices that are not used are not reported"


def test_phases_are_in_the_trace(recorded):
    recorded.python("""
        import asyncio, driver, vramtrace

        driver.init()
        with vramtrace.phase("outer"):
            with vramtrace.phase("forward"):
                driver.free(driver.alloc(512))

        @vramtrace.phase("step")
        def step():
            return driver.alloc(16)

        @vramtrace.phase("later")
        async def later():
            await asyncio.sleep(0)
            return driver.alloc(8)

        @vramtrace.phase("each")
        def each():
            for mib in (1, 2):
                yield driver.alloc(mib)

        kept = [step(), step(), asyncio.run(later()), *each()]
        vramtrace.mark("half")
        for wrong in (3, lambda: None):
            driver.fails(TypeError, "name of a phase", vramtrace.phase, wrong)
        """)
    run = recorded.vramtrace("report", "--by", "phase", "out")
    words = [line.split() for line in run.stdout.splitlines() if line.startswith("  ")]
    rows = {row[0]: row[1] for row in words if len(row) > 1}
    assert (rows.get("step"), rows.get("later"), rows.get("each")) == ("2", "1", "1"), run.stdout
    assert "forward" in rows and "outer" in rows


def test_numbers_of_a_phase_are_part_of_its_name(recorded):
    recorded.python("""
        import driver, vramtrace

        class Index:
            "As the integers of NumPy and PyTorch."
            def __index__(self):
                return 5

        driver.init()
        with vramtrace.phase(batch=6):
            driver.free(driver.alloc(8))
        with vramtrace.phase("train", batch=Index(), tokens=256):
            driver.free(driver.alloc(8))

        @vramtrace.phase(batch=4)
        def step():
            driver.free(driver.alloc(8))

        step()
        for wrong in ({}, {"batch": "6"}, {"batch": 1.5}, {"batch": None}, {"name": None}):
            driver.fails(TypeError, "phase(batch=6)", vramtrace.phase, **wrong)
        """)
    run = recorded.vramtrace("report", "--by", "phase", "--json", "out")
    phases = json.loads(run.stdout)["processes"][0]["phases"]
    assert {phase["path"][-1] for phase in phases} == {"batch=6", "train batch=5 tokens=256", "batch=4"}


def test_peaks_may_lie_in_each_other(recorded):
    recorded.python("""
        import driver, vramtrace

        driver.init()
        kept = driver.alloc(100)
        with vramtrace.Peak() as outer:
            driver.free(driver.alloc(512))
            with vramtrace.Peak() as inner:
                driver.free(driver.alloc(64))
            with vramtrace.Peak() as idle:
                pass
        assert [peak.bytes >> 20 for peak in (outer, inner, idle)] == [612, 164, 100]
        assert [peak.grown >> 20 for peak in (outer, inner, idle)] == [512, 64, 0]
        assert outer.by_device == {0: 612 << 20}
        """)


def test_a_snapshot_is_a_trace_of_its_own(recorded):
    recorded.python("""
        import driver, os, vramtrace

        driver.init()
        kept = driver.alloc(300)
        assert vramtrace.trace().endswith(".vtrace")
        assert vramtrace.snapshot("now.vtrace") == "now.vtrace"
        assert os.stat("now.vtrace").st_mode & 0o777 == 0o600
        driver.fails(FileExistsError, "", vramtrace.snapshot, "now.vtrace")
        driver.free(kept)
        """)
    run = recorded.vramtrace("report", "--json", "now.vtrace")
    assert run.returncode == 0, run.stderr
    [process] = json.loads(run.stdout)["processes"]
    assert process["devices"][0]["peak_bytes"] == (300 + 518) << 20, "with the context"
    assert process["devices"][0]["live_bytes"] == 300 << 20, "as it was then"


def test_a_forked_child_has_figures_of_its_own(recorded):
    recorded.python("""
        import driver, os, vramtrace

        driver.init()
        kept = driver.alloc(64)
        child = os.fork()
        if child == 0:
            os._exit(0 if vramtrace.usage().devices == [] and vramtrace.is_active() else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert vramtrace.usage().live == 64 << 20
        """)


def test_the_command_as_a_module(recorded):
    run = recorded.bare("-m", "vramtrace", "--version")
    assert run.stdout.startswith("vramtrace ") and run.returncode == 0, run.stderr


def test_the_library_is_where_the_package_says(recorded):
    run = recorded.bare("-c", "import vramtrace; print(vramtrace.library())")
    assert run.stdout.strip().endswith("/vramtrace/libvramtrace.so"), run.stderr


def test_importing_loads_nothing_large(recorded):
    run = recorded.bare("-c", "import sys; before = set(sys.modules); import vramtrace; "
                        "print(*(set(sys.modules) - before))")
    assert run.stdout.split() == ["vramtrace"], run.stdout


def test_the_loggers_of_a_trainer_see_the_figures(recorded):
    pytest.importorskip("transformers")
    recorded.python("""
        import driver
        from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
        from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
        from vramtrace import callbacks

        class Logger(TrainerCallback):
            def __init__(self):
                self.began, self.logged = 0, []

            def on_train_begin(self, args, state, control, **named):
                self.began += 1

            def on_log(self, args, state, control, logs=None, **named):
                self.logged.append(dict(logs))

        driver.init()
        kept = driver.alloc(1024)
        # The loggers stand before a user's own callbacks; some are added later.
        for late in (False, True):
            first, last = Logger(), Logger()
            ours = callbacks.trainer_callback()
            handler = CallbackHandler([DefaultFlowCallback, first], None, None, None, None)
            state, control = TrainerState(), TrainerControl()
            if not late:
                handler.add_callback(ours)
            handler.on_init_end(None, state, control)
            if late:
                handler.add_callback(ours)
            handler.add_callback(last)
            handler.on_train_begin(None, state, control)
            handler.on_log(None, state, control, {"loss": 1.0})
            for logger in (first, last):
                [logged] = logger.logged
                assert logger.began == 1, "no callback is passed over, none is called twice"
                assert logged["loss"] == 1.0 and logged["vram/cuda0/live_gib"] == 1.0, (late, logged)
            assert handler.callbacks.count(ours) == 1 and len(handler.callbacks) == 4
        """)


def test_without_the_trainers_list_the_figures_are_in_its_logs(recorded):
    recorded.write("transformers.py", "class TrainerCallback: pass")
    recorded.python("""
        import driver
        from vramtrace import callbacks

        driver.init()
        kept = driver.alloc(1024)
        logs = {"loss": 1.0}
        callback = callbacks.trainer_callback()
        callback.on_init_end(None, None, None)
        callback.on_log(None, None, None, logs=logs)
        assert logs["vram/cuda0/live_gib"] == 1.0 and logs["loss"] == 1.0
        driver.fails(ImportError, "pip install lightning", callbacks.lightning_callback)
        """)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_loggers_of_lightning_see_the_figures(recorded, package):
    """Over a stand-in: Lightning itself needs PyTorch."""
    parts = package.split(".")
    folder = recorded.directory
    for part in parts:
        folder = folder / part
        folder.mkdir()
        (folder / "__init__.py").write_text("class Callback: pass\n")
    recorded.python("""
        import driver
        from types import SimpleNamespace
        from vramtrace import callbacks

        driver.init()
        kept = driver.alloc(512)
        logged = []
        logger = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((step, metrics)))
        trainer = SimpleNamespace(global_step=0, log_every_n_steps=5, loggers=[logger, logger])
        callback = callbacks.lightning_callback(prefix="gpu/")
        for trainer.global_step in range(1, 12):
            callback.on_train_batch_end(trainer, None, None, None, 0)
        assert [step for step, _ in logged] == [5, 5, 10, 10], logged
        assert all(metrics["gpu/cuda0/live_gib"] == 0.5 for _, metrics in logged), logged
        """)
