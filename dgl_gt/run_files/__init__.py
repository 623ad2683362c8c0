"""The files of a training run: their names, their contents, and how they are written and read."""
