"""Runs the cells of a `bench` that have no results yet, each after the cells that it needs, and writes their records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from doppler_tf.api.benchmark.cell_work import do_cell, kept
from doppler_tf.api.benchmark.cells import CELLS, Cell, complete_cells, record_of
from doppler_tf.api.benchmark.suite import SAMPLES, TRAINS
from doppler_tf.formats.files import write_json
from doppler_tf.report.progress import progress_bar
from doppler_tf.tasks import open_tasks

Records = dict[str, dict[str, Any]]


def run_cells(folder: Path, cells: Mapping[str, Cell], ray: str | None = None, jobs: int | None = None) -> tuple[Records, list[str]]:
    """Runs the cells that are not complete.

    Args:
      ray, jobs: which processes run them, as in `open_tasks`.

    Returns:
      The records of all cells by key, and the keys of the cells that this call ran.

    Raises:
      KeyboardInterrupt: with the number of finished cells, after worker processes have been ended.
    """
    records = complete_cells(folder, cells)
    waiting = {key: cell for key, cell in cells.items() if key not in records}
    ran = list(waiting)
    try:
        with progress_bar("cells", len(records), len(cells)) as move, open_tasks(ray, jobs, len(ran), folder) as tasks:
            last: dict[int, Any] = {}  # by worker, what its last cell shares with others
            while waiting or tasks.busy:
                for cell in [cell for cell in waiting.values() if _failed_need(cell, records)]:
                    records[cell.key] = _record_failure(waiting.pop(cell.key), f"needs {_failed_need(cell, records)}, which failed")
                    _write(folder, records[cell.key])
                for worker in tasks.idle():
                    cell = _next(waiting, records, worker, last)
                    if cell is not None:
                        last[worker] = _compiled(cell)
                        needed = {role: records[other] for role, other in cell.needs.items()}
                        tasks.start(worker, cell.key, do_cell, folder, waiting.pop(cell.key), needed)
                move(len(records), status=", ".join(key for key in ran if key not in records and key not in waiting))
                for key, record, error in tasks.wait() if waiting or tasks.busy else ():
                    records[key] = _record_failure(cells[key], error) if error else record
                    _write(folder, records[key])
            move(len(records))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{folder}: {len(records)} of {len(cells)} cells are done; the same command continues") from None
    finally:
        kept.cache_clear()
    return {key: records[key] for key in cells}, ran


def _next(waiting: Mapping[str, Cell], records: Records, worker: int, last: Mapping[int, Any]) -> Cell | None:
    """The cell that a worker should run now: if possible one that uses what it has compiled, or else what no other worker has."""
    ready = [cell for cell in waiting.values() if all(records.get(other, {}).get("status") == "done" for other in cell.needs.values())]
    mine, others = last.get(worker), [shared for other, shared in last.items() if other != worker and shared]
    return min(ready, key=lambda cell: (_compiled(cell) != mine or not mine, _compiled(cell) in others), default=None)


def _compiled(cell: Cell) -> tuple[str, str] | None:
    """Cells for which this is equal share compiled policies; None: a cell that has none."""
    return (cell.graph, cell.topology) if cell.job["does"] in (TRAINS, SAMPLES) else None


def _failed_need(cell: Cell, records: Records) -> str:
    """The key of a failed cell that a cell needs; "" if there is none."""
    return next((other for other in cell.needs.values() if records.get(other, {}).get("status", "done") != "done"), "")


def _record_failure(cell: Cell, error: str) -> dict[str, Any]:
    return record_of(cell, {"status": "failed", "error": error})


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    write_json(folder / CELLS / f"{record['key']}.json", record, indent=1)
