"""Bytes between processes: connections, and a WAN on one machine."""
