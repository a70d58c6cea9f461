"""What machine this is: its CPU, its caches, what of it we may use, and how fast it is."""

from __future__ import annotations

from tokenmill.hardware.cpu import Cpu, read_cpu
from tokenmill.hardware.threads import ThreadChoice, choose_threads
from tokenmill.hardware.topology import CacheLevel, Topology, read_topology

__all__ = [
    "CacheLevel",
    "Cpu",
    "ThreadChoice",
    "Topology",
    "choose_threads",
    "read_cpu",
    "read_topology",
]
