"""Transmission policies: what travels less exactly in training steps, by request."""
