"""Devices of several machines."""
