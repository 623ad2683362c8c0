"""Reads the arrays of a shard directory (docs/format.md), one part at a time. Every reader of shards goes through here."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open

from partition.errors import InputError
from partition.system.units import counted


class ShardReader:
    """Gives the arrays of each part, as numpy arrays or as torch tensors.

    Only what is asked for is read. The files hold no pickle. Whether they are undamaged is checked by
    :func:`partition.shards.manifest.verify`, which callers run first.

    Parameters
    ----------
    directory : path
        Shards.
    manifest : dict
        Their manifest.
    framework : {"numpy", "pt"}
        Type of the arrays: numpy arrays, which are copies in memory; or torch tensors, which stay mapped to the file and
        cost no copy.
    """

    def __init__(self, directory, manifest: dict, framework: str = "numpy"):
        self.directory, self.manifest, self.framework = Path(directory), manifest, framework
        self.parts, self.is_vertex_cut = manifest["parts"], manifest["cut"] == "vertex"

    def rows(self, part: int, depth: int = 1) -> list[int]:
        """Return the number of owned rows, then the number of held rows with the copies of 1, 2, ..., ``depth`` hops.

        A vertex cut has copies of one hop: its mirrors.
        """
        counts = self.manifest["per_part"][part]
        rows = [counts["owned"]]
        for copies in [counts["mirrors"]] if self.is_vertex_cut else counts["halo_by_hop"][:depth]:
            rows.append(rows[-1] + copies)
        return rows

    def structure(self, part: int, *names: str, depth: int = 1) -> dict:
        """Return arrays of a part's structure, as they would be in shards whose halo is ``depth`` hops deep.

        Parameters
        ----------
        part : int
        *names : str
            Arrays of ``structure.safetensors`` to read; all where none is given.
        depth : int
            Hops of halo, at most as many as the shards have. Shards of a deeper halo begin with those of a smaller
            depth, so that the arrays are only cut off.

        Returns
        -------
        dict of str to array
            ``indptr`` and ``indices`` hold the in-edges of the owned rows and of the copies of ``depth - 1`` hops; of a
            vertex cut, those of all held rows.

        Raises
        ------
        InputError
            The file cannot be read, or does not fit the manifest.
        """
        if self.is_vertex_cut:
            return self._read(part, "structure.safetensors", names, {})
        counts, rows, pointers = self.manifest["per_part"][part], self.rows(part, depth), depth * self.parts + 1
        edges, sent = (sum(counts[key][:depth]) for key in ("edges_by_hop", "sent_by_hop"))
        lengths = {
            "indptr": rows[depth - 1] + 1,
            **dict.fromkeys(("indices", "edge_ids"), edges),
            "node_ids": rows[depth],
            **dict.fromkeys(("recv_ptr", "send_ptr"), pointers),
            "send_rows": sent,
        }
        arrays = self._read(part, "structure.safetensors", names, lengths)
        for key, end in {"indptr": edges, "recv_ptr": rows[depth] - rows[0], "send_ptr": sent}.items():
            if key in arrays and arrays[key][-1] != end:  # compiled loops trust that pointers fit
                raise InputError(
                    f"{self.directory} is damaged: {key!r} of part {part} ends at {int(arrays[key][-1])} after "
                    f"{counted(depth, 'hop')}, but the manifest says {end}; partition the graph again"
                )
        return arrays

    def data(self, part: int, kind: str, *names: str, rows: int) -> dict:
        """Return data of a part's first rows.

        Parameters
        ----------
        part : int
        kind : {"node_data", "edge_data"}
        *names : str
            Data to read; all where none is given.
        rows : int
            Number of held nodes, or of edges, whose data are read.

        Raises
        ------
        InputError
            The file cannot be read.
        """
        names = names or tuple(self.manifest[kind])
        return self._read(part, f"{kind}.safetensors", names, dict.fromkeys(names, rows))

    def _read(self, part: int, file_name: str, names, lengths: dict[str, int | None]) -> dict:
        """Read arrays of a file, or the first ``lengths[name]`` rows of each."""
        path = self.directory / f"part{part}" / file_name
        try:
            with safe_open(path, framework=self.framework) as file:
                return {key: _first_rows(file, key, lengths.get(key)) for key in names or file.keys()}
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot read {path}: {error}") from error


def _first_rows(file, name: str, rows: int | None):
    stored = file.get_slice(name)
    if rows is None or rows >= stored.get_shape()[0]:  # safetensors cannot slice an array without rows
        return file.get_tensor(name)
    return stored[:rows]
