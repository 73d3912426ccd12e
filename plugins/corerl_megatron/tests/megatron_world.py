"""Worlds of real processes that meet over gloo, as a runtime would start them."""

import multiprocessing
import socket

import megatron_jobs as jobs

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["megatron_jobs"])


class World:
    """Ranks that wait for jobs; close it to end them."""

    def __init__(self, size):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.ranks = []
        for rank in range(size):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
            place |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
            here, there = CONTEXT.Pipe()
            environment = {name: str(value) for name, value in place.items()}
            process = CONTEXT.Process(target=jobs.serve, args=(there, environment), daemon=True)
            process.start()
            self.ranks.append((process, here))

    def run(self, job, options, within=120):
        """What each rank's job gave, by rank."""
        for _, connection in self.ranks:
            connection.send((job, options))
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


class Laid:
    """A world with ranks laid out as the options say."""

    def __init__(self, world, options):
        self.world, self.options = world, options

    def run(self, **job):
        return self.world.run(job, self.options)
