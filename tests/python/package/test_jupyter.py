"""``%%vram`` in a real kernel."""

import json

NOTEBOOK = """
    import json, nbformat
    from nbclient import NotebookClient

    sources = [
        "%load_ext vramtrace\\nimport driver; driver.init()",
        "%%vram\\na = driver.alloc(256); driver.free(a)\\nb = driver.alloc(64)\\n'shown'",
        "%vram",
        "%%vram -n x\\npass",
        "%%vram\\n1/0",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    NotebookClient(notebook, kernel_name="python3", timeout=100, allow_errors=True).execute()
    print(json.dumps([
        [output.get("text") or output.get("ename") or output["data"]["text/plain"] for output in cell.outputs]
        for cell in notebook.cells
    ]))
"""


def test_a_cells_peak_holders_and_what_it_left(recorded):
    loaded, cell, line, wrong, error = json.loads(recorded.python(NOTEBOOK).splitlines()[-1])
    assert loaded == []
    text = "".join(cell)
    assert "'shown'" in text, "the cell's value is displayed"
    assert "peak 256.00 MiB (256.00 MiB more than before the cell), left +64.00 MiB" in text, text
    assert "64.00 MiB     64.00 MiB  cuda:0" in text and recorded.line("driver.py", "must(lib.cuMemAlloc_v2") in text, text
    assert "allocations 64.00 MiB, peak 256.00 MiB" in "".join(line)
    assert "usage: %%vram" in "".join(wrong)
    assert error.count("ZeroDivisionError") == 1, "the cell fails, and says so once"


def test_without_the_recorder_the_cell_runs(recorded):
    recorded.write("program.py", NOTEBOOK.replace("import driver; driver.init()", "1").replace(
        "a = driver.alloc(256); driver.free(a)\\nb = driver.alloc(64)\\n", ""))
    run = recorded.bare("program.py")
    assert run.returncode == 0, run.stderr
    cells = json.loads(run.stdout.splitlines()[-1])
    text = "".join(cells[1])
    assert "vramtrace run" in text and "'shown'" in text, text
