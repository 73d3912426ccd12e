"""Worlds of real processes that meet over gloo, as a runtime would start them."""

import multiprocessing
import os
import socket
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import rank_jobs

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["rank_jobs"])


def start_server():
    """Start the process that imports :mod:`rank_jobs` once and forks every rank; it finds it by PYTHONPATH alone."""
    found = {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}
    with mock.patch.dict(os.environ, found):
        forkserver.ensure_running()


class World:
    """Ranks that wait for jobs; close it to end them."""

    def __init__(self, size):
        start_server()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.ranks = []
        for rank in range(size):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
            place |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            here, there = CONTEXT.Pipe()
            environment = {name: str(value) for name, value in place.items()}
            process = CONTEXT.Process(target=rank_jobs.serve, args=(there, environment), daemon=True)
            process.start()
            self.ranks.append((process, here))

    def run(self, within=60, **job):
        """What each rank's job gave, by rank."""
        for _, connection in self.ranks:
            connection.send(job)
        results = []
        for rank, (_, connection) in enumerate(self.ranks):
            assert connection.poll(within), f"rank {rank} did not end within {within} s"
            results.append(connection.recv())
        return results

    def close(self):
        for process, connection in self.ranks:
            process.kill()
            process.join()
            connection.close()
