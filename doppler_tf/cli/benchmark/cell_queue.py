"""Runs the cells of a `bench` that have no results yet, several at a time; long cells run in separate processes."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from doppler_tf.cli.benchmark.cell_work import do_cell
from doppler_tf.cli.benchmark.cells import CELLS, JOBS, LOGS, Cell, complete_cells, record_of
from doppler_tf.cli.benchmark.suite import PLACES, SAMPLES, TRAINS
from doppler_tf.cli.messages import bars_wanted
from doppler_tf.cli.rooms import module_call
from doppler_tf.errors import FormatError
from doppler_tf.formats.files import read_json, write_json
from doppler_tf.heuristics import CONSTRUCTIVE, FAST
from doppler_tf.report.progress import progress_bar

_POLL_S = 0.05
# Up to this many vertices of a graph, or vertices simulated in a search, a cell takes about a second at most.
_SHORT_VERTICES, _SHORT_STEPS = 1_000, 10_000_000


class _Running(NamedTuple):
    """A process and its cells, which it runs one after another. Cells with the same networks share compiled code."""

    cells: list[Cell]
    process: subprocess.Popen
    log: Path


def run_cells(folder: Path, cells: Mapping[str, Cell], jobs: int) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Runs the cells that are not complete, in order, each as soon as the cells that it needs are done.

    Returns:
      The records of all cells by key, and the keys of the cells that this call ran.

    Raises:
      KeyboardInterrupt: with the number of finished cells, after its processes have been ended.
    """
    records = complete_cells(folder, cells)
    waiting = [cell for key, cell in cells.items() if key not in records]
    ran, running = [cell.key for cell in waiting], []
    with progress_bar("cells", len(records), len(cells), bars_wanted()) as move:
        try:
            while waiting or running:
                _start(folder, waiting, running, records, jobs)
                for job in list(running):
                    ended = job.process.poll() is not None  # checked first, so that no record of an ended process is missed
                    records |= _read_records(folder, job)
                    if ended:
                        running.remove(job)
                        left = [cell for cell in job.cells if cell.key not in records]
                        records |= {cell.key: _record_crash(folder, job, cell) for cell in left[:1]}
                        waiting[:0] = left[1:]  # the process had not begun them
                current = ", ".join(next((c.key for c in job.cells if c.key not in records), "") for job in running)
                move(len(records), status=current)
                if running:
                    time.sleep(_POLL_S)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{folder}: {len(records)} of {len(cells)} cells are done; the same command continues") from None
        finally:
            _end_processes(running)
    return records, ran


def _start(folder: Path, waiting: list[Cell], running: list[_Running], records: dict[str, dict[str, Any]], jobs: int) -> None:
    """Starts cells whose needs are done, and runs a short cell at once. A cell fails if a cell that it needs has failed."""
    for cell in list(waiting):
        if len(running) >= jobs:
            return
        if cell not in waiting or not _ready(cell, records):
            continue
        needed = {role: records[other] for role, other in cell.needs.items()}
        failed = next((record["key"] for record in needed.values() if record["status"] != "done"), None)
        if failed is not None:
            waiting.remove(cell)
            records[cell.key] = _record_failure(folder, cell, f"needs {failed}, which failed")
        elif _is_short(cell, needed):
            waiting.remove(cell)
            records[cell.key] = do_cell(folder, cell, needed)
            return  # to the caller, who updates the progress bar
        else:
            together = [cell, *(other for other in waiting if other is not cell and _shares_compiled(cell, other, records))]
            if not any(other not in together and _ready(other, records) for other in waiting):
                together = together[:-(-len(together) // (jobs - len(running)))]  # no slot stays idle
            for each in together:
                waiting.remove(each)
            running.append(_launch(folder, together, records))


def _ready(cell: Cell, records: Mapping[str, Any]) -> bool:
    return all(other in records for other in cell.needs.values())


def _shares_compiled(cell: Cell, other: Cell, records: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether both cells use policies on the same graph and topology, and the needs of `other` are done."""
    alike = (cell.graph, cell.topology) == (other.graph, other.topology) and {cell.job["does"], other.job["does"]} <= {TRAINS, SAMPLES}
    return alike and all(records.get(need, {}).get("status") == "done" for need in other.needs.values())


def _is_short(cell: Cell, needed: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a cell takes about a second at most, less than a separate process takes to start."""
    job = cell.job
    if job["does"] != PLACES or job["seconds"] or "seconds_of" in needed or job["method"] in ("auto", "cp_sat"):
        return False
    if job["method"] in CONSTRUCTIVE:
        return job["method"] in FAST or job["vertices"] <= _SHORT_VERTICES
    simulations = needed["simulations_of"]["episodes"] if "simulations_of" in needed else job["simulations"]
    return bool(simulations) and simulations * job["vertices"] <= _SHORT_STEPS


def _launch(folder: Path, cells: list[Cell], records: Mapping[str, Mapping[str, Any]]) -> _Running:
    for cell in cells:
        needed = {role: records[other] for role, other in cell.needs.items()}
        write_json(folder / JOBS / f"{cell.key}.json", {"cell": asdict(cell), "needed": needed})
        (folder / CELLS / f"{cell.key}.json").unlink(missing_ok=True)  # so that an old record is not mistaken for the new one
    log = folder / LOGS / f"{cells[0].key}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        command, environment = module_call("doppler_tf.cli.benchmark.cell_work")
        process = subprocess.Popen([*command, str(folder), *(cell.key for cell in cells)], stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=output, env=environment)
    return _Running(cells, process, log)


def _read_records(folder: Path, job: _Running) -> dict[str, dict[str, Any]]:
    """The records that a process has written so far."""
    records = {}
    for cell in job.cells:
        if (folder / CELLS / f"{cell.key}.json").exists():
            with contextlib.suppress(FormatError):
                records[cell.key] = read_json(folder / CELLS / f"{cell.key}.json")
    return records


def _record_crash(folder: Path, job: _Running, cell: Cell) -> dict[str, Any]:
    """Writes a failure for the cell that a process was running when it ended."""
    code = job.process.returncode
    ended = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return _record_failure(folder, cell, f"its process {ended} without a result; {job.log} holds its output")


def _record_failure(folder: Path, cell: Cell, error: str) -> dict[str, Any]:
    record = record_of(cell, {"status": "failed", "error": error})
    write_json(folder / CELLS / f"{cell.key}.json", record, indent=1)
    return record


def _end_processes(running: list[_Running]) -> None:
    """Terminates processes, and kills those that have not ended after 5 s."""
    for job in running:
        job.process.terminate()
    for job in running:
        try:
            job.process.wait(5)
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()
