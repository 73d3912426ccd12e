"""What goes wrong with workers is one clear error in time, and nothing is left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from ray_toys import ENGINE, TOY, Broken, Engine, Generation, Late, Slow, Toy, each, request

from corerl.contracts.config import RuntimeConfig
from corerl.errors import ConfigError, DeadlineError, RunError
from corerl_ray.cluster import connect
from corerl_ray.ends import exit_cause
from corerl_ray.environment import at_start, carried, secrets
from corerl_ray.options import RayOptions
from corerl_ray.processes import is_alive
from corerl_ray.runtime import RayRuntime

pytestmark = pytest.mark.xdist_group("ray")  # whose cluster is started once


def pids(group):
    return [member.facts.pid for member in group.members]


def all_gone(processes, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_alive, processes))


def test_an_error_of_one_rank_arrives_as_it_was_raised_while_the_others_wait(start):
    runtime = start(workers=2)
    group = runtime.spawn(TOY, Toy)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        group.fail(1, "config")
    assert str(caught.value) == "actor worker 1 of 2: rollout.n: is wrong" and caught.value.key == "rollout.n"
    runtime.close()
    assert time.monotonic() - began < 60  # of 600
    assert all_gone(pids(group))


def test_a_bug_in_a_worker_is_one_line_with_its_place(start):
    group = start().spawn(TOY, Toy)
    with pytest.raises(RunError, match=r"^actor worker: KeyError: 'missing' \(.*ray_toys.py, line \d+\)$"):
        group.fail(0, "bug")


@pytest.mark.parametrize(
    ("how", "cause"), [("kill", r"killed \(SIGKILL, .*"), ("exit", "it exited with code 7")], ids=["kill", "exit"]
)
def test_a_dead_worker_is_named_with_cause_and_last_lines_and_the_others_are_ended(start, how, cause):
    group = start(workers=2).spawn(TOY, Toy)
    began = time.monotonic()
    pattern = (
        rf"^the actor worker 1 of 2 \(process {pids(group)[1]} on .*\) died: {cause}; .*:\n    about to fail: {how}"
    )
    with pytest.raises(RunError, match=pattern) as caught:
        group.fail(1, how)
    assert time.monotonic() - began < 60  # of 600
    assert "Traceback" not in str(caught.value) and "actor_id" not in str(caught.value)
    assert all_gone(pids(group))


def test_the_death_of_a_worker_that_nobody_waits_for_is_noticed(start):
    runtime = start()
    busy, idle = runtime.spawn(TOY, Toy), runtime.spawn(TOY, Toy)
    future = busy.sleep.submit(600)
    os.kill(pids(idle)[0], signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RunError, match=rf"process {pids(idle)[0]} on .* died"):
        future.result()
    assert time.monotonic() - began < 60  # of 600
    assert all_gone(pids(busy))


def test_a_killed_worker_leaves_no_children(start):
    group = start().spawn(TOY, Toy)
    child = group.start_child()
    assert is_alive(child)
    os.kill(pids(group)[0], signal.SIGKILL)
    with pytest.raises(RunError, match="died"):
        group.rank_zero()
    assert all_gone([child])


def test_the_death_of_the_last_rollout_worker_reaches_every_thread_that_waits(start):
    runtime = start(rollout_workers=1)
    actor, rollout = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Engine)
    assert len(rollout.members) == 1 and len(actor.members) == 1
    errors = []

    def generate():
        try:
            Generation(rollout, [request(name, seconds=600.0) for name in "ab"]).result()
        except RunError as error:
            errors.append(error)

    thread = threading.Thread(target=generate)
    thread.start()
    training = actor.sleep.submit(600)
    began = time.monotonic()
    doomed = rollout.members[0]
    doomed.host.call.remote("die", {}, 0)
    with pytest.raises(RunError) as caught:
        training.result()
    thread.join()
    assert time.monotonic() - began < 60  # of 600
    assert str(caught.value) == str(errors[0])
    pattern = rf"^the rollout worker \(process {pids(rollout)[0]} on .*\) died: killed .*:\n    about to die$"
    assert re.match(pattern, str(caught.value))
    assert all_gone(pids(actor) + pids(rollout))


def test_generation_that_takes_too_long_leaves_the_actor_to_save_the_last_step(start):
    runtime = start(rollout_workers=2)
    actor, rollout = runtime.spawn(TOY, Toy), runtime.spawn(ENGINE, Late)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"^rollout worker 0 of 2: 1 of 2 prompts had no responses \(log on "):
        Generation(rollout, [request(name) for name in "abcd"]).result()
    assert actor.rank_zero() == 0
    runtime.close()
    assert time.monotonic() - began < 60
    assert all_gone(pids(actor) + pids(rollout))


def test_a_worker_ends_with_its_raylet_whatever_the_clock_shows():
    """Ray's own looks at the raylet may be hours apart after a jump of the clock; here nobody else looks."""
    program = (
        "import os, time; from corerl_ray.host import end_with_parent\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True); time.sleep(1); os._exit(0)\n"
        "os.close(1); end_with_parent(); time.sleep(600)"
    )
    child = int(subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=120).stdout)
    try:
        assert all_gone([child], 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def test_an_error_of_a_worker_ends_the_wait_for_another_thread_too(start):
    runtime = start()
    failing, busy = runtime.spawn(TOY, Toy), runtime.spawn(TOY, Toy)
    futures = busy.sleep.submit(600), failing.fail.submit(0, "bug")

    def wait():
        with pytest.raises(RunError):
            futures[1].result()

    thread = threading.Thread(target=wait)
    thread.start()
    with pytest.raises(RunError, match="KeyError: 'missing'"):
        futures[0].result()
    thread.join()


def test_a_call_has_a_deadline(start):
    group = start(timeout=2).spawn(TOY, Toy)
    late = r"^actor.sleep \(runtime.options.timeout\) took longer than 2 s: no answer from actor worker \(log on .*: /"
    with pytest.raises(DeadlineError, match=late):
        group.sleep(600)


def test_a_start_has_a_deadline(start):
    late = r"^starting the actor workers \(runtime.options.start_timeout\) took longer than 3 s: no answer from actor"
    with pytest.raises(DeadlineError, match=late):
        start(start_timeout=3).spawn(TOY, Slow)


def test_closing_ends_all_processes(start):
    runtime = start()
    groups = [runtime.spawn(TOY, Toy), runtime.spawn(TOY, Toy)]
    processes = [pid for group in groups for pid in pids(group)]
    assert len(set(processes)) == 2 and all(map(is_alive, processes))
    runtime.close()
    assert all_gone(processes, 0)
    runtime.close()


def test_a_worker_that_cannot_be_built_says_why(start):
    with pytest.raises(ConfigError, match=r"^actor worker: model.path: there is no model$"):
        start().spawn(TOY, Broken)


def test_too_few_cpus_are_reckoned_up(start):
    message = r"^runtime.options.workers: 99 workers on 1 node take 99 CPUs on each, .* 1 has 0 GPUs and 10 CPUs$"
    with pytest.raises(ConfigError, match=message):
        start(workers=99)


def test_too_few_cpus_for_both_pools_are_reckoned_up(start):
    message = (
        r"^runtime.options.rollout_workers: 9 rollout workers beside the 2 of the shared pool take 9 \+ 2 = 11 CPUs, "
        r"and the cluster's 1 has 0 GPUs and 10 CPUs$"
    )
    with pytest.raises(ConfigError, match=message):
        start(workers=2, rollout_workers=9)


@pytest.mark.parametrize("name", ["workers", "rollout_workers"])
def test_workers_are_not_counted_where_gpus_are(cluster, name):
    with pytest.raises(ConfigError, match=rf"^runtime.options.{name}: counts workers without GPUs"):
        RayRuntime(RuntimeConfig(name="ray", n_gpus_per_node=1), RayOptions(**{name: 1}))


def test_places_that_others_hold_have_a_deadline(start):
    start(workers=8)
    with pytest.raises(DeadlineError, match=r"8 workers found no free place within .* = 1 s"):
        start(workers=8, connect_timeout=1)


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("127.0.0.1:1", DeadlineError, "no Ray cluster answers at runtime.options.address=127.0.0.1:1"),
        ("ray://127.0.0.1:10001", ConfigError, "must be HOST:PORT"),
        ("somewhere", ConfigError, "must be HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(address, error, message):
    with pytest.raises(error, match=message):
        connect(RayOptions(address=address, connect_timeout=2))


def test_exit_causes_are_short():
    said = "The actor died.\n\tpid: 3\nThe actor is dead. Worker exit type: X Worker exit detail: Worker exits. code 9."
    assert exit_cause(said) == "Worker exits"
    assert exit_cause("The node died.\nmore") == "The node died."


def test_variables_are_carried_by_prefix_or_name():
    environment = {"HF_HOME": "a", "NCCL_DEBUG": "b", "PATH": "c", "MY_TOKEN": "d"}
    environment |= {"MY_FLAG": "e", "HF_TOKEN": "f", "AWS_SECRET_ACCESS_KEY": "g"}
    assert carried(["MY_TOKEN", "MY_FLAG"], environment) == {"HF_HOME": "a", "NCCL_DEBUG": "b", "MY_FLAG": "e"}
    assert secrets(["MY_TOKEN"], environment) == {"MY_TOKEN": "d", "HF_TOKEN": "f"}


CARRIED = {
    "HTTPS_PROXY": "http://proxy.example:3128",
    "NO_PROXY": "files.example",
    "SSL_CERT_FILE": "/etc/site.pem",
    "REQUESTS_CA_BUNDLE": "/etc/site.pem",
    "XDG_CACHE_HOME": "/scratch/cache",
    "NVTE_FUSED_ATTN": "0",
    "UCX_TLS": "tcp",
    "NVSHMEM_SYMMETRIC_SIZE": "1G",
    "FI_PROVIDER": "efa",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}


def test_proxies_certificates_caches_and_variables_of_networks_are_carried_and_devices_are_not():
    others = {"CUDA_VISIBLE_DEVICES": "3", "PATH": "/bin", "SITE": "x", "XDG_RUNTIME_DIR": "/run"}
    assert carried([], CARRIED | others) == CARRIED


def test_a_value_with_a_password_is_a_secret_whatever_its_name():
    environment = {"HTTPS_PROXY": "http://me:pa55word@proxy.example:3128", "NCCL_DEBUG": "INFO"}
    assert carried([], environment) == {"NCCL_DEBUG": "INFO"}
    assert secrets([], environment) == {"HTTPS_PROXY": "http://me:pa55word@proxy.example:3128"}
    assert at_start(["HTTPS_PROXY"], environment) == {}  # Ray would log it


def test_workers_of_a_cluster_that_has_other_variables_get_those_of_the_controller(start, monkeypatch):
    own = CARRIED | {"ALL_PROXY": "socks5://me:pa55word@proxy.example:1080", "SITE_FLAG": "named"}
    for name, value in own.items():  # the cluster runs: its processes do not inherit them
        monkeypatch.setenv(name, value)
    group = start(workers=2, environment=["SITE_FLAG"]).spawn(TOY, Toy)
    for found in each(group, "variables", [*own, "no_proxy"]):
        exceptions = "files.example,localhost,127.0.0.1,::1"
        assert found == own | {"NO_PROXY": exceptions, "no_proxy": exceptions}


def test_variables_are_set_at_a_process_s_start_by_name_alone():
    environment = {"HF_HOME": "a", "LD_PRELOAD": "b", "MY_TOKEN": "c"}
    assert at_start([], environment) == {}
    assert at_start(["MY_TOKEN", "MISSING"], environment) == {}
    assert at_start(["LD_PRELOAD", "MY_TOKEN"], environment) == {"runtime_env": {"env_vars": {"LD_PRELOAD": "b"}}}
