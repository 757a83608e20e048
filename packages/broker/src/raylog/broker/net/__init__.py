"""Sockets: accepting, reading frames, sending replies."""
