"""What is known of a training step before a run: its costs, its memory, and the fastest way to take it."""
