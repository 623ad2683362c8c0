"""What a training step costs, read off the step itself."""
